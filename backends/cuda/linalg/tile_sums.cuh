#pragma once

/// A tile of 64 x 64 of a product without tensor cores. A block of 256 threads sums it, each thread
/// 4 x 4 elements. Slabs of both operands, 16 deep, are read through functions to shared memory.
namespace sash::cuda {

/// Thread `threadIdx.x` has rows y + 16 i and columns x + 16 j of the tile.
template <class C>
struct TileSums {
  static constexpr int kTile = 64, kDepth = 16, kBlock = 256;
  C of[4][4] = {};

  static __device__ int x() { return static_cast<int>(threadIdx.x) % 16; }
  static __device__ int y() { return static_cast<int>(threadIdx.x) / 16; }

  /// of[r, c] += sum of left(r, k) right(k, c) over k in [begin, end). The flags tell whether
  /// neighbours along k are neighbours in memory.
  template <class Left, class Right>
  __device__ void add(int begin, int end, const Left& left, bool left_along_k, const Right& right,
                      bool right_along_k) {
    auto &a = slab(0), &b = slab(1);
    for (int first = begin; first < end; first += kDepth) {
      read(a, left_along_k, first, end, left);
      read(b, right_along_k, first, end, [&](int c, int k) { return right(k, c); });
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        C l[4], r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          l[i] = a[k][y() + 16 * i];
          r[i] = b[k][x() + 16 * i];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) of[i][j] += l[i] * r[j];
        }
      }
      __syncthreads();
    }
  }

  /// Calls f(row, column, sum) for each result of this thread.
  template <class F>
  __device__ void for_each(const F& f) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) f(y() + 16 * i, x() + 16 * j, of[i][j]);
    }
  }

 private:
  using Slab = C[kDepth][kTile + 1];

  /// The slabs in shared memory. All calls of `add` use the same memory.
  static __device__ Slab& slab(int operand) {
    __shared__ Slab slabs[2];
    return slabs[operand];
  }

  template <class F>
  static __device__ void read(Slab& to, bool along_k, int first, int end, const F& f) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kTile * kDepth / kBlock; ++i) {
      const int k = along_k ? thread % kDepth : thread / kTile + kBlock / kTile * i;
      const int r = along_k ? thread / kDepth + kBlock / kDepth * i : thread % kTile;
      to[k][r] = first + k < end ? f(r, first + k) : C(0);
    }
  }
};

}  // namespace sash::cuda
