#include "mma_inverse.cuh"

/// The arrays of all chunks: 128 threads for each chunk of each value head. Each warp has 16 rows
/// of the products.
///
/// With a decay for each head, P and A are products of rows times exp(G[t] - G[i]), where G is the
/// running sum of g. |G| is at most 200 x 64, so that differences are exact to 0.002.
///
/// With a decay for each feature, P and A are the products of scale b q and b k with k / b, if b is
/// large enough to divide by (`Divisor::suits`). Otherwise P and A are sums over the levels of
/// `each_decay_of_level`, whose decays are at most 1.
namespace sash::cuda::delta {
namespace {

constexpr int kCount = 128;  // threads

template <int kWidth, bool kFeatures, bool kPanels>
struct PrepareShared {
  static constexpr int kTileBytes = RowTile<kWidth>::kBytes, kQueries = kTileBytes;
  static constexpr int kLevels = kQueries + kTileBytes;  // two tiles with decays of a level
  // Blocks of A on the diagonal, float; with decays of heads in the place of the tiles.
  static constexpr int kLower = kFeatures ? kLevels + 2 * kTileBytes : 0;
  static constexpr int kX = kLower + kChunk * kLowerRow * 4;  // a panel
  static constexpr int kProducts = kX + kChunk * kChunk * 2;  // T, see below
  static constexpr int kEnd = kProducts + 32 * 32 * 2;
  // At first, with decays of features, those of tokens [64][kWidth], float, are in the place of A.
  static constexpr int kTilesEnd =
      kFeatures ? kLower + kChunk * kWidth * 4 : (kPanels ? 2 : 1) * kTileBytes;
  static constexpr int kSums = kEnd > kTilesEnd ? kEnd : kTilesEnd;  // G log2(e)
  static constexpr int kBetas = kSums + kChunk * 4, kGrowth = kBetas + kChunk * 4;
  static constexpr int kHalves = kGrowth + kChunk * 4;  // products of a half's decays
  static constexpr int kBytes = kHalves + (kFeatures ? 2 * kWidth * 4 : 0);
};

/// Adds to to(i) the products of 16 rows of the tile lefts(i) with 16 keys, i < n.
template <int kWidth, int n, class Lefts, class To>
__device__ void add_products(const Lefts& lefts, const RowTile<kWidth>& keys, int r, int c,
                             const To& to) {
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    uint32_t left[4], right[4];
    keys.right(right, c, k);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      lefts(i).left(left, r, k);
      multiply(to(i), left, right);
    }
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

/// Writes the rows of a tile as a panel, after f(row, words) has changed 8 elements at a time:
/// those of columns from `panel_column` on.
template <int kWidth, class F>
__device__ void write_panel(Half* to, const unsigned char* tile, const F& f) {
  using X = Tile<Half, kWidth>;
  constexpr int across = kWidth / 8;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < kChunk * kWidth / 8; i += kCount) {
    const auto row = static_cast<int>(i / (8 * across) * 8 + i % 8);
    const auto chunk = static_cast<int>(i / 8 % across);
    auto eight = *reinterpret_cast<const uint4*>(tile + X::offset(row, chunk));
    f(row, reinterpret_cast<uint32_t(&)[4]>(eight));
    reinterpret_cast<uint4*>(to)[i] = eight;
  }
}
/// The first of the columns that this thread writes by `write_panel`, the same in all rows.
template <int kWidth>
__device__ int panel_column() {
  return static_cast<int>(threadIdx.x) / 8 % (kWidth / 8) * 8;
}

/// Reads the decays of a chunk to [64][kWidth], and waits for all copies.
template <int kWidth>
__device__ void read_decays(float* decays, const Chunk<Half>& c) {
  constexpr int across = kWidth / 4;
  const int depth = c.x.sizes.depth, thread = static_cast<int>(threadIdx.x);
  const float* const g = c.x.g + c.token * depth;
#pragma unroll
  for (int i = thread; i < kChunk * across; i += kCount) {
    const int t = i / across, d = i % across * 4;
    const bool inside = t < c.count && d < depth;
    copy_async(shared_address(decays + 4 * i), inside ? g + t * depth + d : g, inside);
  }
  wait_for_copies();
#pragma unroll 4
  for (int i = thread; i < kChunk * across; i += kCount) {
    auto& four = reinterpret_cast<float4*>(decays)[i];
    four = {__expf(four.x), __expf(four.y), __expf(four.z), __expf(four.w)};
  }
}

/// Multiplies `growth` of each token by |1 - beta |k|^2|, by which the delta term enlarges a state
/// at most, if that is over 1. `a` are products of 16 keys. NaN stays NaN.
__device__ void add_growth(float* growth, const float* betas, const Sums16& a, int r) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (row_in(e) != column_in(n, e)) continue;
      const int t = 16 * r + row_in(e);
      const float by = fabsf(1 - betas[t] * a[n][e]);
      if (!(by <= 1)) growth[t] *= by;
    }
  }
}

/// Without panels, P is not formed.
template <int kWidth, bool kFeatures, bool kPanels>
__global__ void __launch_bounds__(kCount, kFeatures ? 2
                                          : kPanels ? 4
                                                    : 8)
    prepare_kernel(const __grid_constant__ Call x) {
  using M = PrepareShared<kWidth, kFeatures, kPanels>;
  using F = Factors<kWidth>;
  constexpr int own = kPanels ? 2 : 1;  // P and A, or A
  extern __shared__ __align__(128) unsigned char shared[];
  start_next_kernel();
  const int heads = x.sizes.value_heads, thread = static_cast<int>(threadIdx.x);
  const int r = __shfl_sync(~0u, warp(), 0);  // the compiler knows that lanes agree
  const int block = static_cast<int>(blockIdx.x), head = block % heads;
  const Place at = x.sizes.place_of_slot(block / heads);
  if (at.count == 0) return;
  const Chunk<Half> c(x, at, head);
  const int64_t index = block;
  const uint32_t base = shared_address(shared);
  const auto lefts_of = [&](uint32_t first) {
    return [=](int i) {
      return RowTile<kWidth>(first + (i < own - 1 ? static_cast<uint32_t>(M::kTileBytes) : 0));
    };
  };
  const RowTile<kWidth> keys(base);
  auto* const sums = reinterpret_cast<float*>(shared + M::kSums);
  auto* const betas = reinterpret_cast<float*>(shared + M::kBetas);
  float* const growth = betas + kChunk;

  const int key_head = head / (heads / x.sizes.heads), end = at.first + at.count;
  Tile<Half, kWidth>::template read<kChunk, kCount>(base, x.k.at(at.b, key_head), at.first, end);
  if constexpr (kPanels) {
    Tile<Half, kWidth>::template read<kChunk, kCount>(base + M::kQueries, x.q.at(at.b, key_head),
                                                      at.first, end);
  }
  if (thread < kChunk) {
    const bool inside = thread < c.count;
    betas[thread] = inside && x.beta ? x.beta[c.token + thread] : 0;
    if constexpr (!kFeatures) {
      const float g = inside && x.g ? x.g[c.token + thread] : 0;
      sums[thread] = (g < kLeastGate ? kLeastGate : g) * kLog2E;
    }
    growth[thread] = 1;
  }
  [[maybe_unused]] auto* const decays = reinterpret_cast<float*>(shared + M::kLower);
  if constexpr (kFeatures) {
    read_decays<kWidth>(decays, c);
  } else {
    wait_for_copies();
  }
  __syncthreads();
  if constexpr (!kFeatures) {
    if (r == 0) running_sums(sums, false);
    __syncthreads();
  }

  const auto panel_of = [&](Half* all) { return all + index * (kChunk * kWidth); };
  float* const factors = x.arrays.e + index * F::kCount;
  Sums16 scores[own][4] = {};  // blocks left of the diagonal, and [3] the one on it
  const auto to_column = [&](int column) {
    return [&, column](int i) -> Sums16& { return scores[i][column]; };
  };
  const auto multiply_all = [&](const auto& lefts) {
#pragma unroll 2
    for (int k = 0; k < kWidth / 16; ++k) {
      uint32_t left[own][4], other[4];
#pragma unroll
      for (int i = 0; i < own; ++i) lefts(i).left(left[i], r, k);
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        if (column < 3 && column >= r) continue;
        keys.right(other, column == 3 ? r : column, k);
#pragma unroll
        for (int i = 0; i < own; ++i) multiply(scores[i][column], left[i], other);
      }
    }
  };
  float scale = x.scale;  // of scores that are to be P
  if constexpr (kFeatures) {
    // With 64 features, the first half of the threads has keys, the other half has queries.
    const int d = thread % (kWidth / 2) * 2, half = thread / (kWidth / 2) % 2;
    const bool has_keys = thread < kWidth, has_queries = thread >= kCount - kWidth;
    const auto load = [&](int first, int j) {
      const int place = RowTile<kWidth>::element(first, j, d);
      const uint32_t key = kWidth == kCount || has_keys ? word_at(shared, place) : 0;
      const uint32_t query = has_queries ? word_at(shared, M::kQueries + place) : 0;
      return PreparedElement{*reinterpret_cast<const float2*>(decays + (first + j) * kWidth + d),
                             unpack(key), unpack(query)};
    };
    auto* const halves = reinterpret_cast<float2*>(shared + M::kHalves);
    float2 product{1, 1};  // of the decays of this thread's tokens
#pragma unroll 8
    for (int t = half * (kChunk / 2); t < (half + 1) * (kChunk / 2); ++t) {
      product = product * *reinterpret_cast<const float2*>(decays + t * kWidth + d);
    }
    if (has_keys) halves[(half * kWidth + d) / 2] = product;
    const bool divides = __syncthreads_and(Divisor::suits(product)) != 0;
    const float2 low = halves[d / 2], high = halves[(kWidth + d) / 2];
    if (!divides) {
      const RowTile<kWidth> level_keys(base + M::kLevels);
      const auto level_lefts = lefts_of(base + M::kLevels);
      each_level([&]<int kHalf>() {
        each_decay_of_level<kHalf>(
            half, load,
            [&](int first, int j, bool upper, float2 decay, const PreparedElement& at_t) {
              const int place = M::kLevels + RowTile<kWidth>::element(first, j, d);
              if (has_keys) word_at(shared, place) = pack(at_t.key * decay);
              if (has_queries && upper) {
                word_at(shared, M::kTileBytes + place) = pack(at_t.query * decay);
              }
            });
        __syncthreads();
        const auto add = [&](int column, const auto& to) {
          add_products<kWidth, own>(level_lefts, level_keys, r, column, to);
        };
        if constexpr (kHalf == 32) {
          if (r >= 2) {
            add(0, to_column(0));
            add(1, to_column(1));
          }
        } else if constexpr (kHalf == 16) {
          if (r == 1) add(0, to_column(0));
          if (r == 3) add(2, to_column(2));
        } else {
          Sums16 sum[own] = {};
          add(r, [&](int i) -> Sums16& { return sum[i]; });
#pragma unroll
          for (int i = 0; i < own; ++i) add_where(scores[i][3], sum[i], in_level<kHalf>);
        }
        __syncthreads();
      });
      Sums16 sum[own] = {};
      add_products<kWidth, own>(lefts_of(base), keys, r, r,
                                [&](int i) -> Sums16& { return sum[i]; });
      add_where(scores[0][3], sum[0], [](int t, int i) { return t == i; });
      add_growth(growth, betas, sum[own - 1], r);
      __syncthreads();
    }

    // b k in the place of the levels, scale b q in the place of q; if b divides, also k / b and f
    // k.
    PreparedElement group[8];
    const Divisor divisor(low);
    const float2 lift = divides ? divisor.lift : float2{1, 1};
    const float2 last = low * lift * high;
    float2 up = half == 0 ? lift : low * lift;
    const auto multiply_by_b = [&]<bool kDivides>() {
#pragma unroll 1
      for (int first = half * (kChunk / 2); first < (half + 1) * (kChunk / 2); first += 8) {
#pragma unroll
        for (int j = 0; j < 8; ++j) group[j] = load(first, j);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          up = up * group[j].decay;
          const int place = RowTile<kWidth>::element(first, j, d);
          if (has_keys) {
            const float2 key = group[j].key;
            word_at(shared, M::kLevels + place) = pack(key * up);
            if constexpr (kDivides) {
              const float2 divided{__fdividef(key.x, up.x), __fdividef(key.y, up.y)};
              word_at(shared, place) = pack(divided);
              word_at(shared, M::kLevels + M::kTileBytes + place) = pack(divided * last);
            }
          }
          if (has_queries) {
            word_at(shared, M::kQueries + place) = pack(x.scale * (group[j].query * up));
          }
        }
      }
    };
    if (divides) {
      multiply_by_b.template operator()<true>();
      __syncthreads();
      multiply_all([=](int i) {
        return RowTile<kWidth>(base + static_cast<uint32_t>(i == 0 ? M::kQueries : M::kLevels));
      });
      add_growth(growth, betas, scores[own - 1][3], r);
      scale = 1;
    } else {
      multiply_by_b.template operator()<false>();
      float2 down = half == 0 ? high : float2{1, 1};
      if (has_keys) {
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
      __syncthreads();
    }
    if (has_keys && half == 1) *reinterpret_cast<float2*>(factors + d) = low * high;
    uint32_t drops[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      drops[i] = pack(Divisor(halves[panel_column<kWidth>() / 2 + i]).drop);
    }
    const auto unlift = [&](int, uint32_t(&words)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = divides ? multiply_halves(words[i], drops[i]) : words[i];
      }
    };
    write_panel<kWidth>(panel_of(x.arrays.b), shared + M::kLevels, unlift);
    write_panel<kWidth>(panel_of(x.arrays.f), shared + M::kLevels + M::kTileBytes,
                        [](int, uint32_t(&)[4]) {});
    write_panel<kWidth>(panel_of(x.arrays.q), shared + M::kQueries, unlift);
  } else {
    if (thread < kWidth) factors[thread] = exp2_approx(sums[kChunk - 1]);
    multiply_all(lefts_of(base));
    add_growth(growth, betas, scores[own - 1][3], r);
    if constexpr (kPanels) {
      const auto times = [&](const auto& factor) {
        return [&](int t, uint32_t(&words)[4]) {
          const float by = factor(t);
          for (uint32_t& word : words) word = pack(by * unpack(word));
        };
      };
      const auto b = [&](int t) { return exp2_approx(sums[t]); };
      write_panel<kWidth>(panel_of(x.arrays.b), shared, times(b));
      write_panel<kWidth>(panel_of(x.arrays.f), shared,
                          times([&](int t) { return exp2_approx(sums[kChunk - 1] - sums[t]); }));
      write_panel<kWidth>(panel_of(x.arrays.q), shared + M::kQueries,
                          times([&](int t) { return x.scale * b(t); }));
    }
    __syncthreads();
  }
  if (thread < kChunk) {
    // Panels have decays of features.
    constexpr bool raw = !kPanels;
    const float g = kFeatures ? 0 : sums[thread], last = kFeatures ? 0 : sums[kChunk - 1];
    const float b = raw ? exp2_approx(g) : 1, f = raw ? exp2_approx(last - g) : 1;
    const bool inside = thread < c.count;
    factors[F::kF + thread] = inside ? f : 0;
    factors[F::kQ + thread] = inside ? raw ? x.scale * b : 1 : 0;
    factors[F::kK + thread] = inside && x.beta ? b : 0;
    factors[F::kU + thread] = x.beta ? betas[thread] : 1;
    factors[F::kSums + thread] = g;
  }

  auto* const lower = reinterpret_cast<float*>(shared + M::kLower);
  // Scores with decays.
  const auto finish = [&](Sums16& sum, bool is_a, int column) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = 16 * r + row_in(e), i = 16 * column + column_in(n, e);
        const float decay = kFeatures ? 1 : exp2_approx(sums[t] - sums[i]);
        const float score = (is_a ? decay : scale * decay) * sum[n][e];
        sum[n][e] = i < t || (i == t && !is_a) ? score : 0;
      }
    }
  };
#pragma unroll
  for (int j = 0; j < own; ++j) {
    const bool is_a = j == own - 1;
    finish(scores[j][3], is_a, r);
#pragma unroll
    for (int column = 0; column < 3; ++column) {
      if (column < r) finish(scores[j][column], is_a, column);
    }
  }
  if constexpr (kPanels) {
    Half* const p_of = x.arrays.p + index * (kChunk * kChunk);
    store<Panel<kChunk>>(p_of, scores[0][3], r, r);
#pragma unroll
    for (int column = 0; column < 4; ++column) {
      if (column < 3 && column < r) store<Panel<kChunk>>(p_of, scores[0][column], r, column);
      if (column > r) store<Panel<kChunk>>(p_of, {}, r, column);
    }
  }
  const auto& a = scores[own - 1];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(lower + (16 * r + lane() / 4 + 8 * half) * kLowerRow +
                                 column_in(n, 0)) = pair_of(a[3][n], half);
    }
  }
#pragma unroll
  for (int column = 1; column < 4; ++column) {
    if (column > r) store<Panel<kChunk>>(shared + M::kX, {}, r, column);
  }
  __syncwarp();
  invert_16(lower, betas, shared + M::kX, 16 * r);
  __syncthreads();
  Sums16 below[1];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) below[0][n][e] = r == 1 ? a[0][n][e] : a[2][n][e];
  }
  join_blocks<1>(below, betas, shared + M::kX, shared + M::kProducts, r);
  join_blocks<2>(reinterpret_cast<const Sums16(&)[2]>(a), betas, shared + M::kX,
                 shared + M::kProducts, r);
  auto* const x_of = reinterpret_cast<uint4*>(x.arrays.x + index * (kChunk * kChunk));
#pragma unroll
  for (int i = 0; i < kChunk * kChunk / 8; i += kCount) {
    x_of[i + thread] =
        x.beta ? reinterpret_cast<const uint4*>(shared + M::kX)[i + thread] : uint4{};
  }
  if (r == 0) {
    float most = kFeatures ? 0 : exp2_approx(sums[kChunk - 1]);  // decay of a feature
    if constexpr (kFeatures) {
      for (int d = lane(); d < x.sizes.depth; d += kWarp) most = fmaxf(most, factors[d]);
      for (int step = 1; step < kWarp; step *= 2) {
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      }
    }
    const float sum = sum_over_lanes(__logf(growth[lane()]) + __logf(growth[lane() + kWarp]));
    if (thread == 0) x.arrays.growth[index] = __logf(most) + sum;
  }
}

}  // namespace

template <int kWidth>
void prepare(const KernelContext& context, const Call& call) {
  const auto run = [&]<bool kFeatures, bool kPanels>() {
    launch<prepare_kernel<kWidth, kFeatures, kPanels>>(
        context, call.sizes.slots * call.sizes.value_heads, kCount,
        PrepareShared<kWidth, kFeatures, kPanels>::kBytes, call);
  };
  if (call.sizes.gates > 1) return run.template operator()<true, true>();
  call.arrays.f ? run.template operator()<false, true>() : run.template operator()<false, false>();
}

template void prepare<64>(const KernelContext&, const Call&);
template void prepare<128>(const KernelContext&, const Call&);

}  // namespace sash::cuda::delta
