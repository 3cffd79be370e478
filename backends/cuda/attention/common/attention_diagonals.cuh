#pragma once

#include "attention_fragments.cuh"

/// Sums of dS along diagonals: the gradient of the relative bias.
namespace sash::cuda::fragments {

/// In shared memory: a step's dS, and its sums along diagonals.
template <int kRows, int kColumns>
struct DiagonalSquare {
  static constexpr int kStride = kColumns + 1, kCount = kRows + kColumns - 1;
  float of[kRows * kStride];
  float sum[kCount];
};

/// Adds the sums of steps [kRows][kColumns], rows queries, to a row of sums that is one owner's, by
/// the distance of the key from the query. The owner is `threads` threads, which call all of this
/// together.
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

  /// `distance` is that of the step's first key from its first query. After the owner met; `meet`
  /// makes it meet again.
  template <class Meet>
  __device__ void add(int distance, Meet meet) const {
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
    meet();
    // All that is as far away as the radius, or farther, has one place on each side: a warp each.
    const int side = thread / kWarp;
    if (side > 1) return;
    float sum = 0;
    for (int d = lane(); d < Square::kCount; d += kWarp) {
      const int at = distance + d - (kRows - 1);
      if (side == 0 ? at <= -radius || radius == 0 : at >= radius) sum += square.sum[d];
    }
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane() == 0 && (side == 0 || radius > 0)) sums[side * 2 * radius] += sum;
  }
};

/// drelative[b, h, d] = sum of diagonals[b, h, block, d], in the order of the blocks.
void sum_diagonals(const KernelContext& context, const float* diagonals, int64_t blocks,
                   const TensorView& drelative);

}  // namespace sash::cuda::fragments
