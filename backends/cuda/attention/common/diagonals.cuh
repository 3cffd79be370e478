#pragma once

#include "fragments.cuh"

/// Sums of dS along diagonals: the gradient of the relative bias.
namespace sash::cuda::fragments {

/// In shared memory: a step's dS, and its sums along diagonals.
template <int kRows, int kColumns>
struct DiagonalSquare {
  static constexpr int kStride = kColumns + 1, kCount = kRows + kColumns - 1;
  float of[kRows * kStride];
  float sum[kCount];
};

/// Adds dS of steps [kRows][kColumns] to a row of sums, one sum for each distance of the key from
/// the query. Rows of a step are queries. Only the `threads` threads of this object use the row,
/// and all of them make each call together.
template <int kRows, int kColumns>
struct Diagonals {
  using Square = DiagonalSquare<kRows, kColumns>;
  Square& square;
  float* sums;  ///< global, [2 R + 1]
  int radius;
  int thread, threads;

  __device__ void clear() const {
    for (int i = thread; i <= 2 * radius; i += threads) sums[i] = 0;
  }
  __device__ void put(const float (&ds)[4], int row, int column) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      square.of[(row + 8 * (e / 2)) * Square::kStride + column + e % 2] = ds[e];
    }
  }

  /// `distance` is the distance of the step's first key from its first query. The caller
  /// synchronises the threads before the call; `sync` synchronises them within it.
  template <class Sync>
  __device__ void add(int distance, Sync sync) const {
    for (int d = thread; d < Square::kCount; d += threads) {
      const int shift = d - (kRows - 1);  // column minus row
      float sum = 0;
      for (int row = max(0, -shift); row < min(kRows, kColumns - shift); ++row) {
        sum += square.of[row * Square::kStride + row + shift];
      }
      const int at = distance + shift;
      if (at > -radius && at < radius) sums[at + radius] += sum;
      square.sum[d] = sum;
    }
    sync();
    // All distances at or beyond the radius share one sum on each side. A warp computes each of the
    // two sums.
    const int side = thread / kWarp;
    if (side > 1) return;
    float sum = 0;
    for (int d = lane(); d < Square::kCount; d += kWarp) {
      const int at = distance + d - (kRows - 1);
      if (side == 0 ? at <= -radius || radius == 0 : at >= radius) sum += square.sum[d];
    }
    sum = sum_over_lanes(sum);
    if (lane() == 0 && (side == 0 || radius > 0)) sums[side * 2 * radius] += sum;
  }
};

}  // namespace sash::cuda::fragments

namespace sash::cuda {

/// drelative[b, h, d] = the sum of diagonals[b, h, block, d] over the blocks, in ascending order.
template <class T>
void sum_diagonals(const KernelContext& context, const T* diagonals, int64_t blocks,
                   View drelative);

}  // namespace sash::cuda
