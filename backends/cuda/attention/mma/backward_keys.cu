#include "../common/limits.h"
#include "backward.cuh"

/// dK = scale E' Q and dV = (M P)' g. A block of threads has kRows keys, and takes the queries of
/// all heads that read them. Rows of scores are keys: S' = K Q', dP' = V g'.
///
/// Memory: a block reads its k and v once and each visible step's q, g and statistics once; it
/// writes its dk and dv once.
namespace sash::cuda::mma {
namespace {

/// `parts`: blocks of threads with the same keys, and different features of dk and dv.
template <int warps, int tiles, int step, int stages, bool in_registers, int blocks, int parts = 1>
struct KeyShape : Shape<warps, tiles, step, stages, in_registers, blocks> {
  static constexpr int kParts = parts;
};

/// `width`: features of a tile in 2-byte elements.
template <int width>
using KeyShapes =
    ShapeOf<width, For<32, KeyShape<4, 1, 64, 2, false, 4>>,
            For<64, KeyShape<2, 2, 32, 2, false, 4>>, For<96, KeyShape<4, 1, 64, 2, false, 2>>,
            For<128, KeyShape<4, 1, 64, 2, false, 2>>, For<192, KeyShape<4, 1, 32, 1, false, 2>>,
            For<256, KeyShape<4, 1, 32, 1, false, 2, 2>>,
            For<512, KeyShape<2, 1, 16, 1, false, 2, 2>>>;

template <class T, int kWidth, class S>
constexpr int shared_bytes() {
  return (2 * S::kRows + 2 * S::kStages * S::kStep) * Tile<T, kWidth>::kRowBytes +
         S::kStages * S::kStep * static_cast<int>(sizeof(RowStats));
}

/// One block computes kRows rows of dk and dv, or a part of their features.
template <class T, int kWidth, class S, Kind kind>
__global__ void __launch_bounds__(S::kThreads, S::min_blocks(kind == Kind::plain))
    key_kernel(const __grid_constant__ Backward<T> x) {
  constexpr bool plain = kind != Kind::general;
  using X = Tile<T, kWidth>;
  constexpr int kTiles = S::kTiles, kRows = S::kRows, kStep = S::kStep;
  constexpr int kFeatures = kWidth / S::kParts;
  constexpr uint32_t row_bytes = kRows * X::kRowBytes, step_bytes = kStep * X::kRowBytes;
  constexpr uint32_t stats_bytes = kStep * sizeof(RowStats);
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t k = shared_address(shared);  // [kRows][kWidth]
  const uint32_t v = k + row_bytes;           // [kRows][kWidth]
  const uint32_t ring = v + row_bytes;        // [kStages]: q, g [kStep][kWidth]
  const uint32_t ring_stats = ring + S::kStages * 2 * step_bytes;  // [kStages][kStep]

  const AttentionDims<T>& p = x.dims;
  const int blocks = (p.keys + kRows - 1) / kRows;
  const int part = static_cast<int>(blockIdx.x) % S::kParts * kFeatures;
  const TilePosition at(static_cast<int>(blockIdx.x) / S::kParts, blocks, p.key_heads);
  const int b = at.b, key_head = at.h, first = at.tile * kRows, heads = p.heads / p.key_heads;

  X::template read<kRows, S::kThreads>(k, x.k.at(b, key_head), first, p.keys);
  X::template read<kRows, S::kThreads>(v, x.v.at(b, key_head), first, p.keys);
  StepIterator<T, false, kStep, plain> steps(p, b, key_head * heads, (key_head + 1) * heads,
                                             first / kBlockKeys);
  Step now = steps.next(), next = steps.next();
  const auto read = [&](const Step& step, uint32_t stage) {
    if (step.first < 0) return;
    const uint32_t to = ring + stage * 2 * step_bytes;
    X::template read<kStep, S::kThreads>(to, x.q.at(b, step.head), step.first, p.queries);
    X::template read<kStep, S::kThreads>(to + step_bytes, x.g.at(b, step.head), step.first,
                                         p.queries);
    const int mine = static_cast<int>(threadIdx.x);
    constexpr int per_copy = 16 / sizeof(RowStats);
    if (mine >= kStep / per_copy) return;
    const RowStats* stats =
        x.stats + (static_cast<int64_t>(b) * p.heads + step.head) * x.padded_queries() + step.first;
    copy_async(ring_stats + stage * stats_bytes + static_cast<uint32_t>(mine * 16),
               stats + mine * per_copy, true);
  };
  read(now, 0);
  Left<T, kWidth, kTiles, S::kInRegisters> keys(k), values(v);
  if (S::kInRegisters) {
    wait_for_copies();
    __syncthreads();
    keys.hold();
    values.hold();
  }

  Sums<kTiles, kFeatures> dk = {}, dv = {};
  uint32_t stage = 0;
  const auto take = [&]<bool masked>(std::bool_constant<masked>) {
    Mask<false, kTiles, kStep> mask;
    if constexpr (masked) mask.template load<plain>(p, now, b, first);
    Factors<kind, false, kTiles, kStep> factors;
    factors.load(p, x.kept_by_key, now, b, now.head, first);
    const uint32_t q = ring + stage * 2 * step_bytes, g = q + step_bytes;
    wait_for_copies();
    X::template round<kStep, S::kThreads>(q, x.q);
    X::template round<kStep, S::kThreads>(g, x.g);
    __syncthreads();  // this stage is there, the other is free
    if (S::kStages == 2) read(next, stage ^ 1);
    const Step after = steps.next();

    const StatsOfColumns stats{reinterpret_cast<const RowStats*>(
        shared + 2 * row_bytes + S::kStages * 2 * step_bytes + stage * stats_bytes)};
    // S' = K Q', dP' = V g'
    Sums<kTiles, kStep> score, dscore;
    multiply_rows<kStep, true>(score, keys, q);
    multiply_rows<kStep, true>(dscore, values, g);
    if constexpr (plain) {
      form_dscores<masked>(score, dscore, p.exponent, stats, mask, factors);
    } else {
      form_general_dscores<false>(score, dscore, p, b, now.head, Scores<T, false>(p, b, now.head),
                                  stats, mask, first, now.first,
                                  [](const float(&)[4], int, int) {});
    }
    // dV += (M P)' g, dK += E' Q
    multiply_add<T, kWidth, true>(dv, score, g, part);
    multiply_add<T, kWidth, true>(dk, dscore, q, part);
    if constexpr (S::kStages == 2) {
      stage ^= 1;
    } else {
      __syncthreads();  // q, g and stats are free
      read(next, 0);
    }
    now = next;
    next = after;
  };
  while (now.first >= 0) {
    if (!plain || now.tile >= 0) {
      take(std::true_type{});
    } else {
      take(std::false_type{});
    }
  }

  wait_for_copies();
  __syncthreads();  // k and v have arrived even if there was no step, and are no longer needed
  float factor[kTiles][2];
#pragma unroll
  for (auto& rows : factor) rows[0] = rows[1] = p.scale;
  write<T, kWidth>(dk, factor, shared, x.dk.at(b, key_head), first, p.keys, part);
#pragma unroll
  for (auto& rows : factor) rows[0] = rows[1] = 1;
  write<T, kWidth>(dv, factor, shared + row_bytes, x.dv.at(b, key_head), first, p.keys, part);
}

template <class T, int kWidth, Kind kind>
void keys(const KernelContext& context, const Backward<T>& call) {
  using S = KeyShapes<kWidth * sizeof(T) / 2>;
  constexpr int shared = shared_bytes<T, kWidth, S>();
  static_assert(shared <= kLeastSharedMemory);
  const AttentionDims<T>& p = call.dims;
  const int64_t blocks = (p.keys + S::kRows - 1) / S::kRows;
  launch<key_kernel<T, kWidth, S, kind>>(
      context, int64_t{p.batches} * p.key_heads * blocks * S::kParts, S::kThreads, shared, call);
}

}  // namespace

template <class T>
void backward_keys(const KernelContext& context, const Backward<T>& call) {
  with_width(call.features(), call.kind(),
             [&]<int kWidth, Kind kind>() { keys<T, kWidth, kind>(context, call); });
}

template void backward_keys(const KernelContext&, const Backward<__nv_bfloat16>&);
template void backward_keys(const KernelContext&, const Backward<__half>&);
template void backward_keys(const KernelContext&, const Backward<float>&);

}  // namespace sash::cuda::mma
