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

/// Adds up dS of steps [kRows][kColumns], rows queries, by the distance of the key from the query,
/// in a row of sums. `threads` threads own the row, and call all of this together.
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

  /// `distance` is that of the step's first key from its first query. The threads have to be in
  /// sync before; `sync` syncs them again.
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
    // Distances from the radius on share one sum on each side: a warp each.
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

/// drelative[b, h, d] = the sum of diagonals[b, h, block, d] over the blocks, in their order.
template <class T>
void sum_diagonals(const KernelContext& context, const T* diagonals, int64_t blocks,
                   View drelative);

}  // namespace sash::cuda
