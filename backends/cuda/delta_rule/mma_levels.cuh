#pragma once

#include "mma_gradients.cuh"

/// The shared memory of `gradient_kernel`, and its part that only decays for each feature have.
namespace sash::cuda::delta {

inline constexpr int kGradientCount = 256;  // threads

template <int kWidth, bool kFeatures>
struct GradientShared {
  static constexpr int kTileBytes = RowTile<kWidth>::kBytes, kSquare = kChunk * kChunk * 2;
  static constexpr int kState = 0, kDState = kWidth * kWidth * 2;
  static constexpr int kU = 2 * kDState, kDu = kU + kTileBytes, kG = kDu + kTileBytes;
  static constexpr int kV = kG + kTileBytes;  // then dv
  static constexpr int kKeys = kV + kTileBytes, kQueries = kKeys + kTileBytes;
  static constexpr int kN = kQueries + kTileBytes, kA = kN + kSquare;  // then dP, dA
  static constexpr int kDecays = kA + kSquare;  // with features: tiles of b, f
  static constexpr int kFloats = kDecays + (kFeatures ? 2 : 0) * kTileBytes;
  static constexpr int kBytes = kFloats + (6 * kChunk + 5 * kWidth + 8) * 4;
  // Later, in the place of all up to kV: keys, queries and decays of a level, and the decays of
  // tokens in float. Then, in the place of u, du and g_out: the terms of dg.
  static constexpr int kDgRow = kWidth + 8;
  static_assert(3 * kTileBytes + kChunk * kWidth * 4 <= kV && kChunk * kDgRow * 4 <= kV - kU);
};

/// Sums of 16 rows and half of the columns.
template <int kWidth>
using HalfRow = Sums16[kWidth / 32];

/// Clears the elements of a left operand that are no pair of the level. Rows are t and columns i,
/// or, `down`, rows are i and columns t.
template <int kHalf, bool down>
__device__ void keep_level(uint32_t (&a)[4]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const int row = lane() / 4 + w % 2 * 8, column = lane() % 4 * 2 + w / 2 * 8;
    const auto kept = [&](int j) {
      return down ? in_level<kHalf>(column + j, row) : in_level<kHalf>(row, column + j);
    };
    a[w] &= (kept(0) ? 0xffffu : 0) | (kept(1) ? 0xffff0000u : 0);
  }
}

struct Element {
  float decay, own;
};

/// The scores' gradients times keys and queries, for decays of each feature: levels of the chunk.
template <int kWidth>
__device__ void add_levels(const Chunk<Half>& c, unsigned char* shared, HalfRow<kWidth>& dq,
                           HalfRow<kWidth>& row, HalfRow<kWidth>& column) {
  using M = GradientShared<kWidth, true>;
  constexpr int blocks = kWidth / 32;
  const uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x), d = thread % kWidth;
  const int r = warp() % 4, first = warp() / 4 * blocks;
  unsigned char *const keys_of = shared, *const queries_of = shared + M::kTileBytes,
                       *const decays_of = shared + 2 * M::kTileBytes;
  const RowTile<kWidth> keys(base), queries(base + M::kTileBytes);
  const Panel<kChunk> dp(base + M::kN), da(base + M::kA);
  // The first threads have a key's feature, the next ones a query's. Registers have no room for
  // the decays.
  auto* const decays = reinterpret_cast<float*>(shared + 3 * M::kTileBytes) + d;  // [64][kWidth]
  if (thread < kWidth) store_decays<kWidth>(decays, c, d);
  unsigned char* const own_tile = shared + (thread < kWidth ? M::kKeys : M::kQueries);
  const auto load = [&](int token, int j) {
    return Element{decays[(token + j) * kWidth],
                   widen(half_at(own_tile, RowTile<kWidth>::element(token, j, d)))};
  };
  each_level([&]<int kHalf>() {
    __syncthreads();
    if (thread < 2 * kWidth) {
      each_decay_of_level<kHalf>(
          load, [&](int token, int j, bool upper, float decay, const Element& x) {
            const int place = RowTile<kWidth>::element(token, j, d);
            if (thread < kWidth) {
              half_at(keys_of, place) = narrow<Half>(x.own * decay);
              half_at(decays_of, place) = narrow<Half>(decay);
            } else {
              half_at(queries_of, place) = narrow<Half>(upper ? x.own * decay : 0.f);
            }
          });
    }
    __syncthreads();
    // The blocks of the other half, [from, from + count).
    constexpr int count = kHalf == 32 ? 2 : 1;
    const bool upper = kHalf < 16 || (kHalf == 16 ? r % 2 == 1 : r >= 2);
    const bool lower = kHalf < 16 || !upper;
#pragma unroll
    for (int j = 0; j < blocks; ++j) {
      const int n = first + j;
      Sums16 to_query = {}, to_row = {}, to_column = {};
      uint32_t left[4], right[4];
      if (upper) {
        const int from = kHalf == 32 ? 0 : kHalf == 16 ? r - 1 : r;
#pragma unroll
        for (int i = 0; i < count; ++i) {
          keys.right_down(right, from + i, n);
          dp.left(left, r, from + i);
          if constexpr (kHalf < 16) keep_level<kHalf, false>(left);
          multiply(to_query, left, right);
          da.left(left, r, from + i);
          if constexpr (kHalf < 16) keep_level<kHalf, false>(left);
          multiply(to_row, left, right);
        }
      }
      if (lower) {
        const int from = kHalf == 32 ? 2 : kHalf == 16 ? r + 1 : r;
#pragma unroll
        for (int i = 0; i < count; ++i) {
          queries.right_down(right, from + i, n);
          dp.left_down(left, from + i, r);
          if constexpr (kHalf < 16) keep_level<kHalf, true>(left);
          multiply(to_column, left, right);
          keys.right_down(right, from + i, n);
          da.left_down(left, from + i, r);
          if constexpr (kHalf < 16) keep_level<kHalf, true>(left);
          multiply(to_column, left, right);
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 decay =
              unpack(word_at(decays_of, RowTile<kWidth>::word(2 * r + half, 2 * n + m)));
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float by = e == 0 ? decay.x : decay.y;
            dq[j][m][2 * half + e] += by * to_query[m][2 * half + e];
            row[j][m][2 * half + e] += by * to_row[m][2 * half + e];
            column[j][m][2 * half + e] += by * to_column[m][2 * half + e];
          }
        }
      }
    }
  });
}

}  // namespace sash::cuda::delta
