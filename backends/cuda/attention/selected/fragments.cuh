#pragma once

#include "../../hopper/copy.cuh"
#include "../common/fragments.cuh"
#include "../mma/instructions.cuh"
#include "call.cuh"

/// Operands of tensor cores (mma/instructions.cuh) from tiles in shared memory (hopper::Tile).
namespace sash::cuda::selected {

using fragments::kInfinity;
using fragments::kLog2E;
using fragments::RowStats;

/// The scale, to the base 2. Kernels multiply by its size, above 0, so that hidden scores stay
/// -infinity.
struct Exponent {
  float size;
  bool negative;

  __device__ explicit Exponent(const Dims& dims)
      : size(fmaxf(fabsf(static_cast<float>(dims.scale) * kLog2E), 1e-30f)),
        negative(dims.scale < 0) {}

  template <int n>
  __device__ void apply_sign(float (&sums)[n][4]) const {
    if (!negative) return;
#pragma unroll
    for (auto& four : sums) {
#pragma unroll
      for (float& x : four) x = -x;
    }
  }
};

/// The address of the 16-byte chunk `chunk` of a row.
template <class X>
__device__ uint32_t chunk_address(const X& tile, int row, int chunk) {
  const int place = (chunk % 8) ^ (row % 8);
  return tile.address() +
         static_cast<uint32_t>(chunk / 8 * X::kSlabBytes + row * X::kRowBytes + place * 16);
}

/// The rows of a tile from `row` on, as this lane addresses them: the row of a fragment that is its
/// own, and one of two chunks. Later chunks are in other bits of the address, which are flipped.
class LaneRows {
 public:
  /// `down`: matrices 0 and 1 of a fragment lie below each other, and 2 and 3; else beside.
  template <class X>
  __device__ LaneRows(const X& tile, int row, bool down) {
    const int i = lane() / 8, below = down ? i % 2 : i / 2, beside = down ? i / 2 : i % 2;
    address_ = chunk_address(tile, row + below * 8 + lane() % 8, beside);
  }
  /// The address for chunks 2 k and 2 k + 1, and rows `rows` further down, a multiple of 8.
  template <class X>
  __device__ uint32_t at(int rows, int k) const {
    const auto slab = static_cast<uint32_t>(k / 4 * X::kSlabBytes + rows * X::kRowBytes);
    return (address_ ^ static_cast<uint32_t>(k % 4 * 32)) + slab;
  }

 private:
  uint32_t address_;
};

/// sum[j] += left rows . right rows' over `depth` features: 16 rows of the left tile by 8 n rows of
/// the right one. Operands are loaded while those before them are multiplied.
template <class T, int depth, class L, class R, int n>
__device__ void multiply_rows(float (&sum)[n][4], const LaneRows& left, const LaneRows& right) {
  uint32_t a[2][4], b[2][n / 2][4];
  const auto load = [&](int k) {
    mma::load_matrices(a[k % 2], left.at<L>(0, k));
#pragma unroll
    for (int j = 0; j < n / 2; ++j) mma::load_matrices(b[k % 2][j], right.at<R>(16 * j, k));
  };
  load(0);
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    if (k + 1 < depth / 16) load(k + 1);
#pragma unroll
    for (int j = 0; j < n / 2; ++j) {
      const uint32_t(&x)[4] = b[k % 2][j];
      mma::Operand<T>::multiply(sum[2 * j], a[k % 2], x[0], x[1]);
      mma::Operand<T>::multiply(sum[2 * j + 1], a[k % 2], x[2], x[3]);
    }
  }
}

/// sum [16, 8 n] += weights [16, 8 m] . 8 m rows of the right tile. Operands are loaded four at a
/// time while those before them are multiplied.
template <class T, class R, int n, int m>
__device__ void multiply_weights(float (&sum)[n][4], const float (&weights)[m][4],
                                 const LaneRows& right) {
  constexpr int parts = n / 8;  // of the features
  uint32_t b[2][4][4];
  const auto load = [&](int i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      mma::load_transposed(b[i % 2][j], right.at<R>(16 * (i / parts), 4 * (i % parts) + j));
    }
  };
  load(0);
#pragma unroll
  for (int i = 0; i < m / 2 * parts; ++i) {
    if (i + 1 < m / 2 * parts) load(i + 1);
    uint32_t a[4];
    mma::Operand<T>::from_sums(a, weights, i / parts);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t(&x)[4] = b[i % 2][j];
      float(*const to)[4] = sum + 8 * (i % parts) + 2 * j;
      mma::Operand<T>::multiply(to[0], a, x[0], x[1]);
      mma::Operand<T>::multiply(to[1], a, x[2], x[3]);
    }
  }
}

}  // namespace sash::cuda::selected
