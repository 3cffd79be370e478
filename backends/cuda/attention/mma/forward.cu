#include <optional>

#include "../common/limits.h"
#include "../families.h"
#include "scores.cuh"

/// Attention with an online softmax (M. Milakov and N. Gimelshein, "Online normalizer calculation
/// for softmax", 2018; T. Dao, "FlashAttention-2", ICLR 2024).
///
/// Memory: a block reads its queries once and each visible step's keys and values once; it writes
/// its rows of out and lse, once.
namespace sash::cuda {
namespace mma {
namespace {

/// `width`: features of a tile in 2-byte elements.
template <int width>
using ForwardShapes =
    ShapeOf<width, For<32, Shape<4, 1, 64, 2, true, 4>>, For<64, Shape<2, 2, 64, 1, true, 4>>,
            For<96, Shape<4, 1, 64, 1, true, 3>>, For<128, Shape<4, 1, 64, 2, true, 2>>,
            For<192, Shape<4, 1, 32, 1, false, 2>>, For<256, Shape<4, 1, 32, 1, false, 2>>,
            For<512, Shape<4, 1, 16, 1, false, 2>>>;

template <class T>
struct Forward {
  AttentionDims<T> dims;
  Rows<const T> q, k, v;
  Rows<T> out;
  float* lse;
  const KeptTile* kept;  ///< what dropout keeps, by query (common/kept.cuh); else null
};

/// The online softmax of this lane's rows. `total` is the lane's part of a row sum.
template <int kTiles>
struct Softmax {
  float highest[kTiles][2], total[kTiles][2];

  __device__ Softmax() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        highest[tile][half] = -kInfinity;
        total[tile][half] = 0;
      }
    }
  }

  /// From scores to weights 2^(exponent (score - highest so far)); rescales the sums of earlier
  /// steps. With `masked`, a row may have no visible key yet.
  template <bool masked, int kStep, int kWidth>
  __device__ void update(Sums<kTiles, kStep>& score, Sums<kTiles, kWidth>& sum, float exponent) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float now = highest[tile][half];
#pragma unroll
        for (auto& part : score[tile]) now = max(now, max(part[2 * half], part[2 * half + 1]));
        now = max_over_quad(now);
        const float shift = masked && now == -kInfinity ? 0.f : now * exponent;
        const float rescale = exp2_approx(highest[tile][half] * exponent - shift);
        highest[tile][half] = now;
        float added = 0;
#pragma unroll
        for (auto& part : score[tile]) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            part[e] = exp2_approx(fmaf(part[e], exponent, -shift));
            added += part[e];
          }
        }
        total[tile][half] = total[tile][half] * rescale + added;
#pragma unroll
        for (auto& part : sum[tile]) {
          part[2 * half] *= rescale;
          part[2 * half + 1] *= rescale;
        }
      }
    }
  }
};

/// From products to scores, in general kernels.
template <class T, int kTiles, int kStep>
__device__ void apply_options(Sums<kTiles, kStep>& score, const Scores<T, true>& scores, int query,
                              int key) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j) {
      float cap_grad[4];
      scores(score[tile][j], cap_grad, query + row_of<kTiles>(tile, 0), key + column_of(j, 0));
    }
  }
}

template <class T, int kTiles, int kStep>
__device__ void apply_dropout(Sums<kTiles, kStep>& weight, const Dropout<T>& dropout, float kept,
                              int query, int key) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const uint32_t keep =
        dropout.template kept<true, kStep>(query + (warp() * kTiles + tile) * 16, key);
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) weight[tile][j][e] *= keep >> (4 * j + e) & 1 ? kept : 0.f;
    }
  }
}

/// One block computes kRows rows of out and lse.
template <class T, int kWidth, class S, Kind kind>
__global__ void __launch_bounds__(S::kThreads, S::min_blocks(kind == Kind::plain))
    forward_kernel(const __grid_constant__ Forward<T> x) {
  constexpr bool plain = kind != Kind::general;
  using X = Tile<T, kWidth>;
  constexpr int kTiles = S::kTiles, kRows = S::kRows, kStep = S::kStep;
  constexpr uint32_t step_bytes = kStep * X::kRowBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t q = shared_address(shared);       // [kRows][kWidth]
  const uint32_t k = q + kRows * X::kRowBytes;     // [kStages][kStep][kWidth]
  const uint32_t v = k + S::kStages * step_bytes;  // [kStages][kStep][kWidth]

  const AttentionDims<T>& p = x.dims;
  const int blocks = (p.queries + kRows - 1) / kRows;
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int b = at.b, h = at.h;
  const int first = (blocks - 1 - at.tile) * kRows;  // longest causal rows first
  const auto keys = x.k.at(b, h / (p.heads / p.key_heads));
  const auto values = x.v.at(b, h / (p.heads / p.key_heads));

  X::template read<kRows, S::kThreads>(q, x.q.at(b, h), first, p.queries);
  StepIterator<T, true, kStep, plain> steps(p, b, h, h + 1, first / kBlockQueries);
  Step now = steps.next(), next = steps.next();
  if (now.first >= 0) {
    X::template read<kStep, S::kThreads>(k, keys, now.first, p.keys);
    if (S::kStages == 2) X::template read<kStep, S::kThreads>(v, values, now.first, p.keys);
  }
  Left<T, kWidth, kTiles, S::kInRegisters> left(q);
  if (S::kInRegisters) {
    wait_for_copies();
    __syncthreads();
    left.hold();
  }

  const Scores<T, true> scores(p, b, h);
  Softmax<kTiles> softmax;
  Sums<kTiles, kWidth> sum = {};
  uint32_t stage = 0;
  const auto take = [&]<bool masked>(std::bool_constant<masked>) {
    Mask<true, kTiles, kStep> mask;
    if constexpr (masked) mask.template load<plain>(p, now, b, first);
    Factors<kind, true, kTiles, kStep> factors;
    factors.load(p, x.kept, now, b, h, first);
    wait_for_copies();
    X::template round<kStep, S::kThreads>(k + stage, keys);
    if (S::kStages == 2) X::template round<kStep, S::kThreads>(v + stage, values);
    __syncthreads();  // k is there, and v too with two stages; the other stage, or v, is free
    if constexpr (S::kStages == 2) {
      if (next.first >= 0) {
        const uint32_t other = step_bytes - stage;
        X::template read<kStep, S::kThreads>(k + other, keys, next.first, p.keys);
        X::template read<kStep, S::kThreads>(v + other, values, next.first, p.keys);
      }
    } else {
      X::template read<kStep, S::kThreads>(v, values, now.first, p.keys);
    }
    const Step after = steps.next();

    // S = Q K'
    Sums<kTiles, kStep> score;
    multiply_rows<kStep, true>(score, left, k + stage);
    if constexpr (S::kStages == 1) {
      wait_for_copies();
      X::template round<kStep, S::kThreads>(v, values);
      __syncthreads();  // v is there, k is free
      if (next.first >= 0) X::template read<kStep, S::kThreads>(k, keys, next.first, p.keys);
    }
    if constexpr (!plain) apply_options(score, scores, first, now.first);
    if constexpr (masked) {
      score.for_each([&](float& x, int tile, int j, int e) {
        if (!mask(tile, j, e)) x = -kInfinity;
      });
    }
    softmax.template update<masked>(score, sum, plain ? p.exponent : 1.f);
    if constexpr (kind == Kind::dropout) {
      score.for_each([&](float& x, int tile, int j, int e) { x *= factors(tile, j, e); });
    }
    if constexpr (kind == Kind::general) {
      if (p.dropout) apply_dropout(score, Dropout(p, b, h), p.kept, first, now.first);
    }
    // O += P V
    multiply_add<T, kWidth, true>(sum, score, v + stage);
    if constexpr (S::kStages == 2) stage = step_bytes - stage;
    now = next;
    next = after;
  };
  while (now.first >= 0 && (!plain || now.tile >= 0)) take(std::true_type{});
  if constexpr (plain) {
    while (now.first >= 0) take(std::false_type{});
  }

  float factor[kTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = sum_over_quad(softmax.total[tile][half]);
      factor[tile][half] = total == 0 ? 0.f : 1 / total;
      const int row = first + row_of<kTiles>(tile, half);
      if (lane() % 4 != 0 || row >= p.queries) continue;
      const float exponent = plain ? p.exponent : 1.f;
      x.lse[p.row_of(b, h) + row] =
          total == 0 ? kInfinity : (softmax.highest[tile][half] * exponent + log2f(total)) * kLn2;
    }
  }
  wait_for_copies();
  __syncthreads();  // q has arrived even if there was no step, and is no longer needed
  write<T, kWidth>(sum, factor, shared, x.out.at(b, h), first, p.queries);
}

template <class T, int kWidth, Kind kind>
void forward(const KernelContext& context, const Forward<T>& call) {
  using S = ForwardShapes<kWidth * sizeof(T) / 2>;
  constexpr int shared = (S::kRows + 2 * S::kStages * S::kStep) * Tile<T, kWidth>::kRowBytes;
  static_assert(shared <= kLeastSharedMemory);
  const AttentionDims<T>& p = call.dims;
  const int64_t blocks = (p.queries + S::kRows - 1) / S::kRows;
  launch<forward_kernel<T, kWidth, S, kind>>(context, int64_t{p.batches} * p.heads * blocks,
                                             S::kThreads, shared, call);
}

}  // namespace
}  // namespace mma

bool attention_mma_takes(const KernelContext&, const AttentionInputs& inputs) {
  const DType dtype = inputs.q.dtype;
  const bool multiplied = dtype == DType::bfloat16 || dtype == DType::float16 ||
                          (dtype == DType::float32 && tf32_allowed());
  return multiplied && std::max(inputs.q.shape[3], inputs.v.shape[3]) <= 256;
}

void attention_mma_forward(KernelContext& context, const AttentionInputs& inputs,
                           const AttentionParams& params, View out, View lse) {
  using namespace mma;
  const BoundsSummary summary(context, inputs, params);
  with_type(inputs.q.dtype, [&]<class T>() {
    Forward<T> call{AttentionDims<T>(inputs, params, summary.bounds()),
                    rows_of<const T>(inputs.q),
                    rows_of<const T>(inputs.k),
                    rows_of<const T>(inputs.v),
                    rows_of<T>(out),
                    lse.ptr<float>(),
                    nullptr};
    const int64_t features = std::max(call.q.width, call.v.width);
    const Kind kind = kind_of(call.dims, features);
    std::optional<KeptTiles<T>> kept;
    if (kind == Kind::dropout) {
      kept.emplace(context, call.dims, params.kept, AttentionPass::forward, true, false);
      call.kept = kept->by_query();
    }
    with_width(features, kind,
               [&]<int kWidth, Kind kKind>() { forward<T, kWidth, kKind>(context, call); });
  });
}

}  // namespace sash::cuda
