#include <optional>

#include "../attention/common/launch.cuh"
#include "../attention/common/limits.h"
#include "hopper.cuh"

/// States and results.
namespace sash::cuda::delta {
namespace {

/// The states of 32 columns of a value head of a text, from chunk to chunk. S' is in registers,
/// where it is an operand of products.
template <int kWidth>
__global__ void __launch_bounds__(2 * kChainCount)
    states_kernel(const __grid_constant__ Call x, float* state) {
  using S = ChainStage<kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& s = x.sizes;
  const StateColumns<kWidth> columns(s);
  const uint32_t base = shared_address(shared);
  StateSums<kWidth> sums(columns, s, x.initial);
  const int64_t first = x.index(s.place(columns.text, 0), columns.head);
  const auto index_of = [&](int step) { return first + int64_t{step} * s.value_heads; };
  const auto copy = [&](int step, int stage, int thread) {
    const uint32_t to = base + static_cast<uint32_t>(stage * S::kBytes);
    const int64_t index = index_of(step);
    constexpr int tile = S::kTileBytes;
    copy_array<kChainCount, tile>(thread, to + S::kW, x.arrays.w + index * (kChunk * kWidth));
    copy_array<kChainCount, tile>(thread, to + S::kF, x.arrays.f + index * (kChunk * kWidth));
    copy_array<kChainCount, kChainColumns * kChunk * 2>(
        thread, to + S::kU, x.arrays.u + (index * kWidth + columns.first) * kChunk);
    copy_array<kChainCount, kWidth * 4>(thread, to + S::kE, x.arrays.e + index * kFactors<kWidth>);
  };
  run_chain<S::kStages>(s.chunks_of(columns.text), copy, [&](int step, int number) {
    const int64_t index = index_of(step);
    const int stage = number * S::kBytes;
    const uint32_t memory = base + static_cast<uint32_t>(stage);
    typename StateSums<kWidth>::Operands left;
    sums.operands(left);
    sums.store_operands(x.arrays.states + index * (kWidth * kWidth), columns, left);

    const Panel<kWidth> w(memory + S::kW), f(memory + S::kF);
    Sums16 u[4] = {};
#pragma unroll
    for (int k = 0; k < columns.kBlocks; ++k) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        uint32_t right[4];
        w.right(right, t, columns.feature_block() + k);
        multiply(u[t], left[k], right);
      }
    }
    add_other_half(u, shared + S::kStages * S::kBytes);
    Half* const to = x.arrays.corrected + index * (kWidth * kChunk);
    uint32_t corrected[4][4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 own = unpack(word_at(
              shared, stage + S::kU + Panel<kChunk>::word(2 * (warp() % 2) + half, 2 * t + n)));
          u[t][n][2 * half] = own.x - u[t][n][2 * half];
          u[t][n][2 * half + 1] = own.y - u[t][n][2 * half + 1];
        }
      }
      if (t / 2 == columns.half()) store<Panel<kChunk>>(to, u[t], columns.block(), t);
      left_of(corrected[t], u[t]);
    }
    sums.decay(reinterpret_cast<const float*>(shared + stage + S::kE));
    sums.add(corrected, [&](uint32_t(&right)[4], int t, int n) { f.right_down(right, t, n); });
  });
  if (static_cast<int>(threadIdx.x) < kChainCount) sums.write(state, columns, s);
}

constexpr int kOutCount = 128;

/// out = Q S + P u: a block for each chunk of each value head, 16 tokens for each warp.
template <int kWidth>
__global__ void __launch_bounds__(kOutCount) out_kernel(const __grid_constant__ Call x, Half* out) {
  constexpr int states = 0, corrected = kWidth * kWidth * 2, queries = corrected + kWidth * 128,
                scores = queries + RowTile<kWidth>::kBytes;
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& s = x.sizes;
  const int block = static_cast<int>(blockIdx.x), r = warp();
  const Chunk<Half> c(x, s.place_of_slot(block / s.value_heads), block % s.value_heads);
  if (c.count == 0) return;
  const int64_t index = block;
  const uint32_t base = shared_address(shared);
  const auto copy = [&]<int bytes>(int place, const Half* from) {
    copy_array<kOutCount, bytes>(static_cast<int>(threadIdx.x), base + static_cast<uint32_t>(place),
                                 from + index * (bytes / 2));
  };
  copy.template operator()<corrected>(states, x.arrays.states);
  copy.template operator()<RowTile<kWidth>::kBytes>(queries, x.arrays.q);
  end_group();
  copy.template operator()<kWidth * 128>(corrected, x.arrays.corrected);
  copy.template operator()<kChunk * 128>(scores, x.arrays.p);
  end_group();
  const Panel<kWidth> state(base + states), query(base + queries);
  const Panel<kChunk> u(base + corrected), p(base + scores);
  Sums16 sum[kWidth / 16] = {};
  wait_for_groups<1>();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    uint32_t left[4], right[4];
    query.left(left, r, k);
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      state.right(right, n, k);
      multiply(sum[n], left, right);
    }
  }
  wait_for_copies();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k > r) continue;
    uint32_t left[4], right[4];
    p.left(left, r, k);
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      u.right(right, n, k);
      multiply(sum[n], left, right);
    }
  }
  const int width = s.width;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = 16 * r + lane() / 4 + 8 * half;
    Half* const row = out + (c.token + t) * width;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      const int m = 8 * n + lane() % 4 * 2;
      const auto& pair = sum[n / 2][n % 2];
      if (t < c.count && m < width) {
        word_at(row + m, 0) = Operand<Half>::pack(pair[2 * half], pair[2 * half + 1]);
      }
    }
  }
}

}  // namespace

bool mma_takes(const KernelContext& context, const Inputs& x) {
  const int64_t most = std::max(x.q.shape[3], x.v.shape[3]);
  if (x.q.dtype != DType::bfloat16 || most > 128 || x.q.shape[2] < kChunk) return false;
  for (const TensorView* rows : {&x.q, &x.k, &x.v}) {
    if (!rows_of<const Half>(*rows).vectors) return false;
  }
  const bool features = x.g && x.g->rank() == 4;
  return shared_memory_limit(context.device) >= gradient_bytes(most <= 64 ? 64 : 128, features);
}

int64_t mma_kept_bytes(const Inputs& x) {
  int64_t bytes = 0;
  with_width(x, [&]<int kWidth>() { bytes = KeptMemory<kWidth>::bytes_of(x); });
  return bytes;
}

void mma_forward(KernelContext& context, const Inputs& x, View out, View state,
                 const TensorView* kept) {
  with_width(x, [&]<int kWidth>() {
    const bool hopper = hopper_takes(context, x);
    const PreparedMemory<kWidth> prepared(context, x, false, hopper && Sizes(x).gates == 1);
    Arrays arrays = prepared.arrays;
    std::optional<KeptMemory<kWidth>> memory;
    if (kept || !hopper) {
      memory.emplace(context, x, kept);
      arrays.states = memory->states;
      arrays.corrected = memory->corrected;
    }
    if (hopper) return hopper_forward(context, x, prepared, arrays, out, state);
    const Call call(x, arrays);
    prepare<kWidth>(context, call);
    launch<states_kernel<kWidth>>(
        context, chain_blocks<kWidth>(x), 2 * kChainCount,
        ChainStage<kWidth>::kStages * ChainStage<kWidth>::kBytes + kExchangeBytes, call,
        state.ptr<float>());
    constexpr int shared = kWidth * kWidth * 2 + kWidth * 128 + RowTile<kWidth>::kBytes + 64 * 128;
    launch<out_kernel<kWidth>>(context, chunks_of(x), kOutCount, shared, call, out.ptr<Half>());
  });
}

}  // namespace sash::cuda::delta
