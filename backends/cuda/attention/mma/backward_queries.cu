#include "../common/diagonals.cuh"
#include "../common/limits.h"
#include "backward.cuh"

/// dQ = scale E K. A block of threads has kRows queries; it also forms their statistics, dbias, and
/// the sums of dS along diagonals.
///
/// Memory: a block reads its q, g and out once and each visible step's keys and values once. It
/// writes its dq and statistics once, and adds to a row of diagonals that no other block uses.
namespace sash::cuda::mma {
namespace {

/// `width`: features of a tile in 2-byte elements.
template <int width>
using QueryShapes =
    ShapeOf<width, For<32, Shape<4, 1, 64, 2, false, 3>>, For<64, Shape<4, 1, 64, 1, false, 4>>,
            For<96, Shape<4, 1, 64, 1, false, 3>>, For<128, Shape<4, 1, 64, 2, true, 2>>,
            For<192, Shape<4, 1, 32, 1, false, 2>>, For<256, Shape<4, 1, 32, 1, false, 2>>,
            For<512, Shape<2, 1, 16, 1, false, 2>>>;

/// For general kernels on cards with less shared memory: diagonals take some.
template <int width>
using SmallQueryShapes =
    ShapeOf<width, For<128, Shape<4, 1, 64, 1, true, 2>>, For<256, Shape<4, 1, 16, 1, false, 2>>,
            For<width, QueryShapes<width>>>;

/// The statistics of this warp's rows, from g and out in global memory, to `shared` and to x.stats.
template <int kTiles, class T>
__device__ void form_stats(const Backward<T>& x, int b, int h, int first, RowStats* shared) {
  constexpr int across = 8, per_vector = 16 / sizeof(T);
  const AttentionDims<T>& p = x.dims;
  const auto g = x.g.at(b, h), out = x.out.at(b, h);
  const int mine = lane() % across;
#pragma unroll 4
  for (int i = lane() / across; i < 16 * kTiles; i += kWarp / across) {
    const int local = warp() * kTiles * 16 + i, row = first + local;
    const bool inside = row < p.queries;
    float dot = 0;
    const T *g_row = g.data + row * g.row, *out_row = out.data + row * out.row;
    if (inside && g.vectors && out.vectors) {
      for (int d = mine * per_vector; d < g.width; d += across * per_vector) {
        const auto a = *reinterpret_cast<const Vector<T, per_vector>*>(g_row + d);
        const auto c = *reinterpret_cast<const Vector<T, per_vector>*>(out_row + d);
#pragma unroll
        for (int e = 0; e < per_vector; ++e) dot += widen(a.element[e]) * widen(c.element[e]);
      }
    } else if (inside) {
      for (int d = mine; d < g.width; d += across) dot += widen(g_row[d]) * widen(out_row[d]);
    }
    dot = sum_over_lanes<across>(dot);
    if (mine != 0) continue;
    RowStats stats{kInfinity, 0.f};
    if (inside) {
      const int64_t at = p.row_of(b, h) + row;
      stats = {x.lse[at] * kLog2E, dot - (x.g_lse ? x.g_lse[at] : 0.f)};
    }
    shared[local] = stats;
    x.stats[(static_cast<int64_t>(b) * p.heads + h) * x.padded_queries() + row] = stats;
  }
}

/// Shared memory of a kernel, in bytes: kMost with diagonals.
template <class T, int kWidth, class S, Kind kind>
struct QueryMemory {
  using Shape = S;
  static constexpr int kShared =
      (2 * S::kRows + 2 * S::kStages * S::kStep) * Tile<T, kWidth>::kRowBytes +
      S::kRows * static_cast<int>(sizeof(RowStats));
  static constexpr int kMost =
      kShared +
      (kind != Kind::general ? 0 : static_cast<int>(sizeof(DiagonalSquare<S::kRows, S::kStep>)));
};

/// One block computes kRows rows of dq.
template <class T, int kWidth, class S, Kind kind>
__global__ void __launch_bounds__(S::kThreads, S::min_blocks(kind == Kind::plain))
    query_kernel(const __grid_constant__ Backward<T> x) {
  constexpr bool plain = kind != Kind::general;
  using X = Tile<T, kWidth>;
  constexpr int kTiles = S::kTiles, kRows = S::kRows, kStep = S::kStep;
  constexpr uint32_t row_bytes = kRows * X::kRowBytes, step_bytes = kStep * X::kRowBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t q = shared_address(shared);       // [kRows][kWidth]
  const uint32_t g = q + row_bytes;                // [kRows][kWidth]
  const uint32_t k = g + row_bytes;                // [kStages][kStep][kWidth]
  const uint32_t v = k + S::kStages * step_bytes;  // [kStages][kStep][kWidth]
  auto* stats_of_block =                           // [kRows]
      reinterpret_cast<RowStats*>(shared + 2 * row_bytes + 2 * S::kStages * step_bytes);

  const AttentionDims<T>& p = x.dims;
  const int blocks = x.padded_queries() / kRows;
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int b = at.b, h = at.h;
  const int first = (blocks - 1 - at.tile) * kRows;  // longest causal rows first
  const auto keys = x.k.at(b, h / (p.heads / p.key_heads));
  const auto values = x.v.at(b, h / (p.heads / p.key_heads));
  const Diagonals<S::kRows, S::kStep> diagonals{
      *reinterpret_cast<DiagonalSquare<S::kRows, S::kStep>*>(stats_of_block + kRows),
      x.diagonals + blockIdx.x * int64_t{2 * p.radius + 1}, p.radius, static_cast<int>(threadIdx.x),
      S::kThreads};
  if (!plain && x.diagonals) diagonals.clear();

  X::template read<kRows, S::kThreads>(q, x.q.at(b, h), first, p.queries);
  X::template read<kRows, S::kThreads>(g, x.g.at(b, h), first, p.queries);
  StepIterator<T, true, kStep, plain, RowBy::address> steps(p, b, h, h + 1, first / kBlockQueries);
  Step now = steps.next(), next = steps.next();
  const auto read = [&](const Step& step, uint32_t stage) {
    if (step.first < 0) return;
    X::template read<kStep, S::kThreads>(k + stage, keys, step.first, p.keys);
    X::template read<kStep, S::kThreads>(v + stage, values, step.first, p.keys);
  };
  read(now, 0);
  form_stats<kTiles>(x, b, h, first, stats_of_block);
  __syncwarp();
  StatsOfRows<kTiles> stats;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      stats.row[tile][half] = stats_of_block[row_of<kTiles>(tile, half)];
    }
  }
  Left<T, kWidth, kTiles, S::kInRegisters> queries(q), cotangents(g);
  if (S::kInRegisters) {
    wait_for_copies();
    __syncthreads();
    queries.hold();
    cotangents.hold();
  }

  const Scores<T, true> scores(p, b, h);
  Sums<kTiles, kWidth> sum = {};
  uint32_t stage = 0;
  const auto take = [&]<bool masked>(std::bool_constant<masked>) {
    Mask<true, kTiles, kStep> mask;
    if constexpr (masked) mask.template load<plain>(p, now, b, first);
    Factors<kind, true, kTiles, kStep> factors;
    factors.load(p, x.kept_by_query, now, b, h, first);
    wait_for_copies();
    X::template round<kStep, S::kThreads>(k + stage, keys);
    X::template round<kStep, S::kThreads>(v + stage, values);
    __syncthreads();  // this stage is there, the other is free
    if (S::kStages == 2) read(next, step_bytes - stage);
    const Step after = steps.next();

    // S = Q K', dP = g V'
    Sums<kTiles, kStep> score, dscore;
    multiply_rows<kStep, true>(score, queries, k + stage);
    multiply_rows<kStep, true>(dscore, cotangents, v + stage);
    if constexpr (plain) {
      form_dscores<masked>(score, dscore, p.exponent, stats, mask, factors);
    } else {
      form_general_dscores<true>(score, dscore, p, b, h, scores, stats, mask, first, now.first,
                                 [&](const float(&ds)[4], int query, int key) {
                                   if (x.diagonals)
                                     diagonals.put(ds, query - first, key - now.first);
                                   if (x.dbias) {
                                     put_dbias(x.dbias, p.keys, ds, p.row_of(b, h) + query, key);
                                   }
                                 });
      if (x.diagonals) {
        __syncthreads();
        diagonals.add(now.first - first - (p.keys - p.queries), [] { __syncthreads(); });
      }
    }
    // dQ += E K
    multiply_add<T, kWidth, true>(sum, dscore, k + stage);
    if constexpr (S::kStages == 2) {
      stage = step_bytes - stage;
    } else {
      __syncthreads();  // k and v are free
      read(next, 0);
    }
    now = next;
    next = after;
  };
  while (now.first >= 0 && (!plain || now.tile >= 0)) take(std::true_type{});
  if constexpr (plain) {
    while (now.first >= 0) take(std::false_type{});
  }

  float factor[kTiles][2];
#pragma unroll
  for (auto& rows : factor) rows[0] = rows[1] = p.scale;
  wait_for_copies();
  __syncthreads();  // q has arrived even if there was no step, and is no longer needed
  write<T, kWidth>(sum, factor, shared, x.dq.at(b, h), first, p.queries);
}

template <class T, int kWidth>
using QueryShape = QueryShapes<kWidth * sizeof(T) / 2>;
template <class T, int kWidth>
using SmallQueryShape = SmallQueryShapes<kWidth * sizeof(T) / 2>;

template <class T, int kWidth, class S, Kind kind>
void queries(const KernelContext& context, const Backward<T>& call) {
  using Shared = QueryMemory<T, kWidth, S, kind>;
  const AttentionDims<T>& p = call.dims;
  const int64_t blocks = call.padded_queries() / S::kRows;
  launch<query_kernel<T, kWidth, S, kind>>(
      context, int64_t{p.batches} * p.heads * blocks, S::kThreads,
      SharedBytes(call.diagonals ? Shared::kMost : Shared::kShared, Shared::kMost), call);
}

}  // namespace

template <class T>
int query_rows(int64_t features) {
  int rows = 0;
  with_width(features, Kind::general, [&]<int kWidth, Kind>() {
    rows = QueryShape<T, kWidth>::kRows;
    static_assert(SmallQueryShape<T, kWidth>::kRows == QueryShape<T, kWidth>::kRows);
  });
  return rows;
}

template <class T>
void backward_queries(const KernelContext& context, const Backward<T>& call) {
  with_width(call.features(), call.kind(), [&]<int kWidth, Kind kind>() {
    with_shape_that_fits<QueryMemory<T, kWidth, QueryShape<T, kWidth>, kind>,
                         QueryMemory<T, kWidth, SmallQueryShape<T, kWidth>, kind>>(
        context.device,
        [&]<class S>() { queries<T, kWidth, typename S::Shape, kind>(context, call); });
  });
}

template int query_rows<__nv_bfloat16>(int64_t);
template int query_rows<__half>(int64_t);
template int query_rows<float>(int64_t);
template void backward_queries(const KernelContext&, const Backward<__nv_bfloat16>&);
template void backward_queries(const KernelContext&, const Backward<__half>&);
template void backward_queries(const KernelContext&, const Backward<float>&);

}  // namespace sash::cuda::mma
