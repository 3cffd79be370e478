#pragma once

#include "mma_gradients.cuh"

/// The shared memory of `gradient_kernel`, and its part that only decays for each feature have.
namespace sash::cuda::delta {

inline constexpr int kGradientCount = 512;                   // threads
inline constexpr int kGradientParts = kGradientCount / 128;  // of columns

template <int kWidth, bool kFeatures>
struct GradientShared {
  static constexpr int kTileBytes = RowTile<kWidth>::kBytes, kSquare = kChunk * kChunk * 2;
  static constexpr int kState = 0, kDState = kWidth * kWidth * 2;
  static constexpr int kW = 2 * kDState, kDu = kW + kTileBytes, kG = kDu + kTileBytes;
  static constexpr int kKeys = kG + kTileBytes, kQueries = kKeys + kTileBytes;
  static constexpr int kP = kQueries + kTileBytes, kA = kP + kSquare;  // dP, dA
  static constexpr int kDecays = kA + kSquare;  // with features: tiles of b, f
  static constexpr int kFloats = kDecays + (kFeatures ? 2 : 0) * kTileBytes;
  static constexpr int kBytes =
      kFloats + ((2 + kGradientParts) * kChunk + 5 * kWidth + kGradientCount / 32) * 4;
  // Later, in the place of all up to kKeys: three tiles of `add_divided` or `add_levels`, and the
  // decays of tokens in float. Then, in the place of w, du and g_out: the terms of dg.
  static constexpr int kDgRow = kWidth + 8;
  static_assert(3 * kTileBytes + kChunk * kWidth * 4 <= kKeys && kChunk * kDgRow * 4 <= kKeys - kW);
};

/// Sums of 16 rows and a part of the columns.
template <int kWidth>
inline constexpr int kPartBlocks = kWidth / 16 / kGradientParts;
template <int kWidth>
using PartOfRow = Sums16[kPartBlocks<kWidth>];

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

/// The products of dP and dA with keys and queries: 16 rows from 16 r and 16 columns from 16 n on.
/// `earlier` are the keys that later tokens see.
template <int kWidth>
__device__ void multiply_scores(Sums16& dq, Sums16& row, Sums16& column, const Panel<kChunk>& dp,
                                const Panel<kChunk>& da, const RowTile<kWidth>& earlier,
                                const RowTile<kWidth>& queries, const RowTile<kWidth>& keys, int r,
                                int n) {
  uint32_t left[4], right[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i <= r) {
      earlier.right_down(right, i, n);
      dp.left(left, r, i);
      multiply(dq, left, right);
      da.left(left, r, i);
      multiply(row, left, right);
    }
    if (i >= r) {
      dp.left_down(left, i, r);
      queries.right_down(right, i, n);
      multiply(column, left, right);
      da.left_down(left, i, r);
      keys.right_down(right, i, n);
      multiply(column, left, right);
    }
  }
}

/// Adds the products of dP and dA with k / b, b q and b k, for decays of each feature. `decays` has
/// the decays of tokens, and b afterwards. Returns false, and adds nothing, if b is too small to
/// divide by (`Divisor::suits`).
template <int kWidth>
__device__ bool add_divided(unsigned char* shared, float* decays, PartOfRow<kWidth>& dq,
                            PartOfRow<kWidth>& row, PartOfRow<kWidth>& column) {
  using M = GradientShared<kWidth, true>;
  constexpr int spans = 2 * kGradientCount / kWidth, size = kChunk / spans;  // of tokens
  const int span = static_cast<int>(threadIdx.x) / (kWidth / 2);
  const int d = static_cast<int>(threadIdx.x) % (kWidth / 2) * 2;
  const auto decay = [&](int t) -> float2& {
    return *reinterpret_cast<float2*>(decays + t * kWidth + d);
  };
  auto* const products = reinterpret_cast<float2*>(shared + M::kDecays) + d / 2;  // of spans
  float2 product{1, 1};
#pragma unroll
  for (int t = span * size; t < (span + 1) * size; ++t) product = product * decay(t);
  products[span * (kWidth / 2)] = product;
  __syncthreads();
  float2 low{1, 1}, high{1, 1};
#pragma unroll
  for (int i = 0; i < spans; ++i) {
    float2& half = i < spans / 2 ? low : high;
    half = half * products[i * (kWidth / 2)];
  }
  if (!__syncthreads_and(Divisor::suits(low) && Divisor::suits(high))) return false;
  float2 b = Divisor(low).lift;
  for (int i = 0; i < span; ++i) b = b * products[i * (kWidth / 2)];
#pragma unroll
  for (int t = span * size; t < (span + 1) * size; ++t) {
    b = b * decay(t);
    decay(t) = b;
    const int place = RowTile<kWidth>::element(t & ~7, t % 8, d);
    const float2 key = unpack(word_at(shared, M::kKeys + place));
    word_at(shared, place) = pack({__fdividef(key.x, b.x), __fdividef(key.y, b.y)});
    word_at(shared, M::kTileBytes + place) = pack(b * unpack(word_at(shared, M::kQueries + place)));
    word_at(shared, 2 * M::kTileBytes + place) = pack(b * key);
  }
  __syncthreads();
  const uint32_t base = shared_address(shared);
  const Panel<kChunk> dp(base + M::kP), da(base + M::kA);
  const RowTile<kWidth> divided(base), queries(base + M::kTileBytes),
      keys(base + 2 * M::kTileBytes);
  const int r = warp() % 4, first = warp() / 4 * kPartBlocks<kWidth>;
#pragma unroll
  for (int j = 0; j < kPartBlocks<kWidth>; ++j) {
    Sums16 to_query = {}, to_row = {}, to_column = {};
    multiply_scores(to_query, to_row, to_column, dp, da, divided, queries, keys, r, first + j);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 b_of =
            *reinterpret_cast<const float2*>(decays + (16 * r + lane() / 4 + 8 * half) * kWidth +
                                             16 * (first + j) + column_in(n, 0));
        add_pair(dq[j][n], half, b_of, pair_of(to_query[n], half));
        add_pair(row[j][n], half, b_of, pair_of(to_row[n], half));
        add_pair(column[j][n], half, {__fdividef(1, b_of.x), __fdividef(1, b_of.y)},
                 pair_of(to_column[n], half));
      }
    }
  }
  return true;
}

struct Element {
  float2 decay, own;
};

/// Adds the same by the levels of the chunk, for any decays.
template <int kWidth>
__device__ void add_levels(unsigned char* shared, const float* decays, PartOfRow<kWidth>& dq,
                           PartOfRow<kWidth>& row, PartOfRow<kWidth>& column) {
  using M = GradientShared<kWidth, true>;
  constexpr int blocks = kPartBlocks<kWidth>;
  const uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int r = warp() % 4, first = warp() / 4 * blocks;
  unsigned char *const keys_of = shared, *const queries_of = shared + M::kTileBytes,
                       *const decays_of = shared + 2 * M::kTileBytes;
  const RowTile<kWidth> keys(base), queries(base + M::kTileBytes);
  const Panel<kChunk> dp(base + M::kP), da(base + M::kA);
  // The first threads have two features of keys, the next ones of queries, the next ones of decays.
  const int role = thread / kWidth;
  const int d = thread % (kWidth / 2) * 2, half_of_tokens = thread / (kWidth / 2) % 2;
  unsigned char* const own_tile = shared + (role == 0 ? M::kKeys : M::kQueries);
  const auto load = [&](int token, int j) {
    return Element{*reinterpret_cast<const float2*>(decays + (token + j) * kWidth + d),
                   unpack(word_at(own_tile, RowTile<kWidth>::element(token, j, d)))};
  };
  each_level([&]<int kHalf>() {
    __syncthreads();
    if (role < 3) {
      each_decay_of_level<kHalf>(half_of_tokens, load,
                                 [&](int token, int j, bool upper, float2 decay, const Element& x) {
                                   const int place = RowTile<kWidth>::element(token, j, d);
                                   if (role == 0) {
                                     word_at(keys_of, place) = pack(x.own * decay);
                                   } else if (role == 1) {
                                     word_at(queries_of, place) = upper ? pack(x.own * decay) : 0;
                                   } else {
                                     word_at(decays_of, place) = pack(decay);
                                   }
                                 });
    }
    __syncthreads();
    // The blocks of the other half, [from, from + count).
    constexpr int count = kHalf == 32 ? 2 : 1;
    const bool upper = kHalf < 16 || (kHalf == 16 ? r % 2 == 1 : r >= 2);
    const bool lower = kHalf < 16 || !upper;
    const int lower_from = kHalf == 32 ? 0 : kHalf == 16 ? r - 1 : r;
    const int upper_from = kHalf == 32 ? 2 : kHalf == 16 ? r + 1 : r;
    uint32_t to_upper[2][count][4], to_lower[2][count][4];  // of dP, of dA
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (upper) {
        dp.left(to_upper[0][i], r, lower_from + i);
        da.left(to_upper[1][i], r, lower_from + i);
      }
      if (lower) {
        dp.left_down(to_lower[0][i], upper_from + i, r);
        da.left_down(to_lower[1][i], upper_from + i, r);
      }
      if constexpr (kHalf < 16) {
#pragma unroll
        for (int of = 0; of < 2; ++of) {
          keep_level<kHalf, false>(to_upper[of][i]);
          keep_level<kHalf, true>(to_lower[of][i]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < blocks; ++j) {
      const int n = first + j;
      Sums16 to_query = {}, to_row = {}, to_column = {};
      uint32_t right[4];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (upper) {
          keys.right_down(right, lower_from + i, n);
          multiply(to_query, to_upper[0][i], right);
          multiply(to_row, to_upper[1][i], right);
        }
        if (lower) {
          queries.right_down(right, upper_from + i, n);
          multiply(to_column, to_lower[0][i], right);
          keys.right_down(right, upper_from + i, n);
          multiply(to_column, to_lower[1][i], right);
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 decay =
              unpack(word_at(decays_of, RowTile<kWidth>::word(2 * r + half, 2 * n + m)));
          add_pair(dq[j][m], half, decay, pair_of(to_query[m], half));
          add_pair(row[j][m], half, decay, pair_of(to_row[m], half));
          add_pair(column[j][m], half, decay, pair_of(to_column[m], half));
        }
      }
    }
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // pairs of a token with itself
    const int t = 16 * r + lane() / 4 + 8 * half;
    const float of_self = widen(half_at(shared, M::kP + Panel<kChunk>::element(t, t)));
#pragma unroll
    for (int j = 0; j < blocks; ++j) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int place = RowTile<kWidth>::word(2 * r + half, 2 * (first + j) + n);
        add_pair(dq[j][n], half, {of_self, of_self}, unpack(word_at(shared, M::kKeys + place)));
        add_pair(column[j][n], half, {of_self, of_self},
                 unpack(word_at(shared, M::kQueries + place)));
      }
    }
  }
}

}  // namespace sash::cuda::delta
