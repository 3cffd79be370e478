#pragma once

#include "mma.cuh"

/// The inverse of a chunk, from blocks of 16 rows on the diagonal: each of four warps has 16 rows.
namespace sash::cuda::delta {

inline constexpr int kLowerRow = 20;  // floats of a row of A

/// X = A (I + beta A)^-1 for 16 rows and columns from `first` on, of which `lower` are the rows of
/// A. Lanes have a column; two lanes have the same one.
__device__ inline void invert_16(const float* lower, const float* betas, unsigned char* to,
                                 int first) {
  const int column = lane() % 16;
  lower += first * kLowerRow, betas += first, to += Panel<kChunk>::element(first, first + column);
  float inverse[16];
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < t; i += 4) {
      const auto four = *reinterpret_cast<const float4*>(lower + t * kLowerRow + i);
      const float row[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (i + j < t) sums[j] += row[j] * inverse[i + j];
      }
    }
    const float x = sums[0] + sums[1] + (sums[2] + sums[3]);
    inverse[t] = (t == column ? 1 : 0) - betas[t] * x;
    half_at(to, Panel<kChunk>::matrix(t / 8, 0) + t % 8 * 16) = narrow<Half>(x);
  }
}

/// X below two blocks of 16 kBlocks rows on the diagonal:
///
///     X10 = T - X11 beta T,    T = A10 - A10 beta X00
///
/// `a` has 16 rows of A10. Warps of the upper blocks do nothing but wait.
template <int kBlocks, int n>
__device__ void join_blocks(const Sums16 (&a)[n], const float* betas, unsigned char* x,
                            unsigned char* products, int r) {
  static_assert(n == kBlocks);
  const bool lower = r / kBlocks % 2 == 1;
  const int base = r / (2 * kBlocks) * (2 * kBlocks);  // the first block of X00
  const int own = kBlocks == 1 ? r / 2 : r - 2, from = kBlocks == 1 ? own : 0;
  const Panel<kChunk> panel(shared_address(x));
  const Panel<32> product(shared_address(products));
  uint32_t left[4], right[4];
  const auto subtract = [&](Sums16& from_sum, const Sums16& sum) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) from_sum[i][e] -= sum[i][e];
    }
  };
  Sums16 t[kBlocks] = {};
  if (lower) {
    Sums16 sum[kBlocks] = {};
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      left_of(left, a[k]);
      scale_columns(left, betas + 16 * (base + k));
#pragma unroll
      for (int j = 0; j <= k; ++j) {
        panel.right_down(right, base + k, base + j);
        multiply(sum[j], left, right);
      }
    }
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      subtract(sum[j], a[j]);
      subtract(t[j], sum[j]);
      store<Panel<32>>(products, t[j], own, j);
    }
  }
  kBlocks == 1 ? __syncwarp() : __syncthreads();
  if (lower) {
    Sums16 sum[kBlocks] = {};
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      if (base + kBlocks + k > r) continue;
      panel.left(left, r, base + kBlocks + k);
      scale_columns(left, betas + 16 * (base + kBlocks + k));
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        product.right_down(right, from + k, j);
        multiply(sum[j], left, right);
      }
    }
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      subtract(t[j], sum[j]);
      store<Panel<kChunk>>(x, t[j], r, base + j);
    }
  }
  __syncthreads();
}

}  // namespace sash::cuda::delta
