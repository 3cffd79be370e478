#pragma once

#include "../hopper/barrier.cuh"
#include "mma.cuh"

/// W, F, Q, U, P and e: 128 threads for each chunk of each value head. Each warp has 16 rows of the
/// products.
///
/// With a decay for each head, P and A are products of rows times exp(G[t] - G[i]), where G is the
/// running sum of g. |G| is at most 200 x 64, so that differences are exact to 0.001. With a decay
/// for each feature, P and A are sums over the levels of `each_decay_of_level`.
namespace sash::cuda::delta {

inline constexpr int kCount = 128;            // threads
inline constexpr int kLowerRow = kChunk + 4;  // floats of a row of beta A

template <int kWidth, bool kFeatures>
struct PrepareShared {
  static constexpr int kTileBytes = RowTile<kWidth>::kBytes;
  static constexpr int kValues = kTileBytes, kQueries = 2 * kTileBytes;
  static constexpr int kLevels = 3 * kTileBytes;  // keys, then queries, with decays of a level
  // beta A, float; with decays of heads in the place of the queries, which are then written.
  static constexpr int kLower = kFeatures ? kLevels + 2 * kTileBytes : kQueries;
  static constexpr int kInverse = kLower + kChunk * kLowerRow * 4;  // N, a panel
  static constexpr int kCorner = kInverse + kChunk * kChunk * 2;    // beta A, rows from 32 on,
  static constexpr int kProduct = kCorner + 32 * 32 * 2;            // columns below; that times N
  static constexpr int kEnd = kProduct + 32 * 32 * 2;
  // At first, the decays of tokens [64][kWidth], float, are in the place of beta A to there.
  static constexpr int kDecaysEnd = kLower + (kFeatures ? kChunk * kWidth * 4 : 0);
  static constexpr int kSums = kEnd > kDecaysEnd ? kEnd : kDecaysEnd;  // G
  static constexpr int kBetas = kSums + kChunk * 4;                    // of keys, of values
  static constexpr int kBytes = kBetas + 2 * kChunk * 4;
};

/// The products of 16 queries, and of 16 keys, with 16 keys.
template <int kWidth>
__device__ void add_products(Sums16& p, Sums16& a, const RowTile<kWidth>& queries,
                             const RowTile<kWidth>& keys, int r, int c) {
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    uint32_t query[4], key[4], other[4];
    queries.left(query, r, k);
    keys.left(key, r, k);
    keys.right(other, c, k);
    multiply(p, query, other);
    multiply(a, key, other);
  }
}

/// Adds the sums at places (row, column) for which `here` is true.
template <class F>
__device__ void add_where(Sums16& to, const Sums16& sums, const F& here) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) to[n][e] += here(row_in(e), column_in(n, e)) ? sums[n][e] : 0;
  }
}

struct PreparedElement {
  float2 decay, key, query;
};

/// P and A of 16 rows: blocks left of the diagonal, and [3] the one on it.
struct Scores {
  Sums16 p[4] = {}, a[4] = {};
};

/// Writes the rows of a tile as a panel, times a factor for each row.
template <int kWidth, class F>
__device__ void write_panel(Half* to, const unsigned char* tile, const F& factor) {
  using X = Tile<Half, kWidth>;
  constexpr int across = kWidth / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) % kCount; i < kChunk * kWidth / 8; i += kCount) {
    const int row = i / (8 * across) * 8 + i % 8, chunk = i / 8 % across;
    auto eight = *reinterpret_cast<const uint4*>(tile + X::offset(row, chunk));
    const float by = factor(row);
    for (uint32_t* word : {&eight.x, &eight.y, &eight.z, &eight.w})
      *word = pack(by * unpack(*word));
    reinterpret_cast<uint4*>(to)[i] = eight;
  }
}

/// The inverse of 32 rows and columns of I + beta A from `first` on: a lane has a column.
__device__ inline void invert_32(const float* lower, unsigned char* inverse, int first) {
  float x[32];
#pragma unroll
  for (int t = 0; t < 32; ++t) {
    float sums[4] = {t == lane() ? 1.f : 0.f, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < t; i += 4) {
      const auto four =
          *reinterpret_cast<const float4*>(lower + (first + t) * kLowerRow + first + i);
      const float row[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (i + j < t) sums[j] -= row[j] * x[i + j];
      }
    }
    x[t] = sums[0] + sums[1] + (sums[2] + sums[3]);
    half_at(inverse, Panel<kChunk>::element(first + t, first + lane())) = narrow<Half>(x[t]);
  }
}

/// Starts to copy rows [first, end) of x to a tile, with zeros below and to the right of them.
template <int kWidth>
__device__ void read_rows(uint32_t tile, const Rows<const Half>& x, int first, int end) {
  constexpr int across = kWidth / 8;
#pragma unroll
  for (int i = 0; i < kChunk * across; i += kCount) {
    const int at = i + static_cast<int>(threadIdx.x) % kCount, row = at / across;
    copy_async(tile + Tile<Half, kWidth>::offset(row, at % across),
               x.data + (first + row) * x.row + at % across * 8,
               first + row < end && at % across * 8 < x.width);
  }
}

/// The chunk of one value head, by one of the groups of kCount threads of a block; `shared` is the
/// group's. Threads may leave while others still read `shared`.
template <int kWidth, bool kFeatures>
__device__ void prepare_chunk(const Call& x, const Place& at, int head, unsigned char* shared) {
  using M = PrepareShared<kWidth, kFeatures>;
  const int heads = x.sizes.value_heads, r = warp() % 4;
  const int thread = static_cast<int>(threadIdx.x) % kCount;
  const auto sync = [] {
    hopper::barrier_sync(1 + static_cast<int>(threadIdx.x) / kCount, kCount);
  };
  const Chunk<Half> c(x, at, head);
  const int64_t index = x.index(at, head);
  const uint32_t base = shared_address(shared);
  const RowTile<kWidth> keys(base), queries(base + M::kQueries), values(base + M::kValues);
  auto* const sums = reinterpret_cast<float*>(shared + M::kSums);
  auto* const of_keys = reinterpret_cast<float*>(shared + M::kBetas);
  float* const of_values = of_keys + kChunk;

  const int key_head = c.head / (heads / x.sizes.heads), end = at.first + at.count;
  read_rows<kWidth>(base, x.k.at(at.b, key_head), at.first, end);
  read_rows<kWidth>(base + M::kQueries, x.q.at(at.b, key_head), at.first, end);
  if (x.arrays.u) read_rows<kWidth>(base + M::kValues, x.v.at(at.b, head), at.first, end);
  if (thread < kChunk) {
    const bool inside = thread < c.count;
    of_keys[thread] = inside && x.beta ? x.beta[c.token + thread] : 0;
    of_values[thread] = inside ? (x.beta ? of_keys[thread] : 1) : 0;
    if constexpr (!kFeatures) {
      const float g = inside && x.g ? x.g[c.token + thread] : 0;
      sums[thread] = g < kLeastGate ? kLeastGate : g;
    }
  }
  [[maybe_unused]] auto* const decays = reinterpret_cast<float*>(shared + M::kLower);
  if constexpr (kFeatures) store_decays<kWidth, kCount>(decays, c);
  wait_for_copies();
  sync();
  if constexpr (!kFeatures) {
    if (r == 0) running_sums(sums, false);
    sync();
  }

  Half* const f_of = x.arrays.f ? x.arrays.f + index * (kChunk * kWidth) : nullptr;
  Half* const q_of = x.arrays.q ? x.arrays.q + index * (kChunk * kWidth) : nullptr;
  float* const factors = x.arrays.e + index * kFactors<kWidth>;
  Scores scores;
  if constexpr (kFeatures) {
    factors[kWidth + thread] = 1;
    // With 64 features, the first half of the threads has keys, the other half has queries.
    const int d = thread % (kWidth / 2) * 2, half = thread / (kWidth / 2) % 2;
    const bool has_keys = thread < kWidth, has_queries = thread >= kCount - kWidth;
    const auto load = [&](int first, int j) {
      const int place = RowTile<kWidth>::element(first, j, d);
      const uint32_t query = has_queries ? word_at(shared, M::kQueries + place) : 0;
      return PreparedElement{*reinterpret_cast<const float2*>(decays + (first + j) * kWidth + d),
                             unpack(word_at(shared, place)), unpack(query)};
    };
    const RowTile<kWidth> level_keys(base + M::kLevels),
        level_queries(base + M::kLevels + M::kTileBytes);
    each_level([&]<int kHalf>() {
      each_decay_of_level<kHalf>(
          half, load, [&](int first, int j, bool upper, float2 decay, const PreparedElement& at_t) {
            const int place = M::kLevels + RowTile<kWidth>::element(first, j, d);
            if (has_keys) word_at(shared, place) = pack(at_t.key * decay);
            if (has_queries && upper) {
              word_at(shared, M::kTileBytes + place) = pack(at_t.query * decay);
            }
          });
      sync();
      const auto add = [&](Sums16& p, Sums16& a, int column) {
        add_products(p, a, level_queries, level_keys, r, column);
      };
      if constexpr (kHalf == 32) {
        if (r >= 2) {
          add(scores.p[0], scores.a[0], 0);
          add(scores.p[1], scores.a[1], 1);
        }
      } else if constexpr (kHalf == 16) {
        if (r == 1) add(scores.p[0], scores.a[0], 0);
        if (r == 3) add(scores.p[2], scores.a[2], 2);
      } else {
        Sums16 p = {}, a = {};
        add(p, a, r);
        add_where(scores.p[3], p, in_level<kHalf>);
        add_where(scores.a[3], a, in_level<kHalf>);
      }
      sync();
    });
    Sums16 p = {}, a = {};
    add_products(p, a, queries, keys, r, r);
    add_where(scores.p[3], p, [](int t, int i) { return t == i; });
    sync();

    // b k and f k in the place of the levels, scale b q in that of q.
    const auto product = [&](int first) {  // of the decays of 32 tokens
      float2 all{1, 1};
#pragma unroll 8
      for (int t = first; t < first + kChunk / 2; ++t) {
        all = all * *reinterpret_cast<const float2*>(decays + t * kWidth + d);
      }
      return all;
    };
    float2 up{1, 1}, down{1, 1};
    (half == 0 ? down : up) = product(half == 0 ? kChunk / 2 : 0);
    PreparedElement group[8];
#pragma unroll 1
    for (int first = half * (kChunk / 2); first < (half + 1) * (kChunk / 2); first += 8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) group[j] = load(first, j);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        up = up * group[j].decay;
        const int place = RowTile<kWidth>::element(first, j, d);
        if (has_keys) word_at(shared, M::kLevels + place) = pack(group[j].key * up);
        if (has_queries) {
          const float2 by{x.scale * up.x, x.scale * up.y};
          word_at(shared, M::kQueries + place) = pack(group[j].query * by);
        }
      }
    }
    if (has_keys) {
      if (half == 1) *reinterpret_cast<float2*>(factors + d) = up;
#pragma unroll 1
      for (int first = (half + 1) * (kChunk / 2) - 8; first >= half * (kChunk / 2); first -= 8) {
#pragma unroll
        for (int j = 0; j < 8; ++j) group[j] = load(first, j);
#pragma unroll
        for (int j = 7; j >= 0; --j) {
          word_at(shared, M::kLevels + M::kTileBytes + RowTile<kWidth>::element(first, j, d)) =
              pack(group[j].key * down);
          down = down * group[j].decay;
        }
      }
    }
    sync();
    const auto one = [](int) { return 1.f; };
    write_panel<kWidth>(f_of, shared + M::kLevels + M::kTileBytes, one);
    write_panel<kWidth>(q_of, shared + M::kQueries, one);
  } else {
    if (thread < kWidth) factors[thread] = __expf(sums[kChunk - 1]);
    if (thread < kChunk) {
      const float inside = thread < c.count ? 1 : 0;
      factors[kWidth + thread] = inside * __expf(sums[kChunk - 1] - sums[thread]);
      factors[kWidth + kChunk + thread] = inside * x.scale * __expf(sums[thread]);
    }
#pragma unroll 2
    for (int k = 0; k < kWidth / 16; ++k) {
      uint32_t query[4], key[4], other[4];
      queries.left(query, r, k);
      keys.left(key, r, k);
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        if (column < 3 && column >= r) continue;
        keys.right(other, column == 3 ? r : column, k);
        multiply(scores.p[column], query, other);
        multiply(scores.a[column], key, other);
      }
    }
    if (f_of) {
      write_panel<kWidth>(f_of, shared, [&](int t) { return __expf(sums[kChunk - 1] - sums[t]); });
      write_panel<kWidth>(q_of, shared + M::kQueries,
                          [&](int t) { return x.scale * __expf(sums[t]); });
    }
    sync();
  }

  auto* const lower = reinterpret_cast<float*>(shared + M::kLower);
  Half* const p_of = x.arrays.p + index * (kChunk * kChunk);
  Half* const a_of = x.arrays.a ? x.arrays.a + index * (kChunk * kChunk) : nullptr;
  // Stores 16 columns of P and A, and of beta A.
  const auto finish = [&](Sums16& p, Sums16& a, int column) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = 16 * r + row_in(e), i = 16 * column + column_in(n, e);
        const float decay = kFeatures ? 1 : __expf(sums[t] - sums[i]);
        p[n][e] = i <= t ? x.scale * decay * p[n][e] : 0;
        a[n][e] = i < t ? decay * a[n][e] : 0;
      }
    }
    store<Panel<kChunk>>(p_of, p, r, column);
    if (a_of) store<Panel<kChunk>>(a_of, a, r, column);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = 16 * r + row_in(e);
        a[n][e] *= of_keys[t];
        lower[t * kLowerRow + 16 * column + column_in(n, e)] = a[n][e];
      }
    }
    if (r >= 2 && column < 2) store<Panel<32>>(shared + M::kCorner, a, r - 2, column);
  };
  finish(scores.p[3], scores.a[3], r);
#pragma unroll
  for (int column = 0; column < 4; ++column) {
    if (column < 3 && column < r) finish(scores.p[column], scores.a[column], column);
    if (column <= r) continue;
    store<Panel<kChunk>>(p_of, {}, r, column);
    if (a_of) store<Panel<kChunk>>(a_of, {}, r, column);
  }

  sync();
  if (r < 2) invert_32(lower, shared + M::kInverse, 32 * r);
  sync();
  // The rest of N: below the diagonal blocks, minus the lower block times A beta times the upper.
  const Panel<kChunk> inverse(base + M::kInverse);
  if (r >= 2) {
    const Panel<32> corner(base + M::kCorner);
    Sums16 sum[2] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t left[4], right[4];
      corner.left(left, r - 2, k);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        inverse.right_down(right, k, n);
        multiply(sum[n], left, right);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) store<Panel<32>>(shared + M::kProduct, sum[n], r - 2, n);
  }
  sync();
  if (r >= 2) {
    const Panel<32> product(base + M::kProduct);
    Sums16 below[2] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (k + 2 > r) continue;
      uint32_t left[4], right[4];
      inverse.left(left, r, k + 2);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        product.right_down(right, k, n);
        multiply(below[n], left, right);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) store<Panel<kChunk>>(shared + M::kInverse, below[n], r, n, -1);
  }
  if constexpr (!kFeatures) {
    // From here on beta of keys also has b.
    if (thread < kChunk) of_keys[thread] *= __expf(sums[thread]);
  }
  sync();
  if (x.arrays.n) {
    auto* const to = reinterpret_cast<uint4*>(x.arrays.n + index * (kChunk * kChunk));
    const auto* const from = reinterpret_cast<const uint4*>(shared + M::kInverse);
    for (int i = thread; i < kChunk * kChunk / 8; i += kCount) to[i] = from[i];
  }

  const RowTile<kWidth> decayed_keys(base + (kFeatures ? M::kLevels : 0));
  Sums16 w[kWidth / 16] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i > r) continue;
    uint32_t left[4], right[4];
    inverse.left(left, r, i);
    scale_columns(left, of_keys + 16 * i);
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      decayed_keys.right_down(right, i, n);
      multiply(w[n], left, right);
    }
  }
  Half* const w_of = x.arrays.w + index * (kChunk * kWidth);
#pragma unroll
  for (int n = 0; n < kWidth / 16; ++n) store<Panel<kWidth>>(w_of, w[n], r, n);

  if (!x.arrays.u) return;
  Half* const u_of = x.arrays.u + index * (kWidth * kChunk);
#pragma unroll 1
  for (int m = r; m < kWidth / 16; m += 4) {
    Sums16 u[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t left[4], right[4];
      values.left_down(left, i, m);
      scale_columns(left, of_values + 16 * i);
#pragma unroll
      for (int t = i; t < 4; ++t) {
        inverse.right(right, t, i);
        multiply(u[t], left, right);
      }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) store<Panel<kChunk>>(u_of, u[t], m, t);
  }
}

}  // namespace sash::cuda::delta
