#include <optional>

#include "../attention/common/launch.cuh"
#include "../attention/common/limits.h"
#include "hopper.cuh"

/// States and results.
namespace sash::cuda::delta {
namespace {

/// Bytes from the start of what a step reads: panels, and e.
template <int kWidth>
struct StatesStep {
  static constexpr int kW = 0, kF = kChunk * kWidth * 2, kU = 2 * kF;
  static constexpr int kE = kU + kChainWidth * kChunk * 2, kBytes = kE + kWidth * 4;
};

template <int kWidth>
__global__ void __launch_bounds__(kChainCount)
    states_kernel(const __grid_constant__ Call x, float* state) {
  using S = StatesStep<kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& sizes = x.sizes;
  const ChainColumns<kWidth> at(sizes);
  const int thread = static_cast<int>(threadIdx.x);
  float s[kWidth / 2];
  begin_state(s, at, sizes, x.initial);
  const auto copy = [&](const Place& place, unsigned char* to) {
    const int64_t index = x.index(place, at.head);
    const auto start = [&]<int bytes>(int offset, const void* from) {
      copy_array<kChainCount, bytes>(thread, shared_address(to + offset), from);
    };
    start.template operator()<S::kF>(S::kW, x.arrays.w + index * (kChunk * kWidth));
    start.template operator()<S::kF>(S::kF, x.arrays.f + index * (kChunk * kWidth));
    start.template operator()<S::kE - S::kU>(S::kU,
                                             x.arrays.u + (index * kWidth + at.first) * kChunk);
    start.template operator()<kWidth * 4>(S::kE, x.arrays.e + index * kFactors<kWidth>);
  };
  walk<false, S::kBytes>(at, sizes, shared, copy, [&](const Place& place, unsigned char* from) {
    const int64_t index = x.index(place, at.head);
    const Panel<kWidth> w(shared_address(from + S::kW)), f(shared_address(from + S::kF));
    uint32_t left[kWidth / 4], corrected[16];
    pack(left, s);
    store_left(x.arrays.states + index * (kWidth * kWidth), left, at.first);
    float u[32] = {};
    add_product<kWidth / 16>(u, left, [&](auto& right, int k, int t) { w.right(right, t, k); });
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 own =
          unpack(word_at(from, S::kU + Panel<kChunk>::word(warp() * 2 + i % 2, i / 2)));
      u[2 * i] = own.x - u[2 * i];
      u[2 * i + 1] = own.y - u[2 * i + 1];
    }
    pack(corrected, u);
    store_left(x.arrays.corrected + index * (kWidth * kChunk), corrected, at.first);
    scale_sums(s, reinterpret_cast<const float*>(from + S::kE));
    add_product<4>(s, corrected, [&](auto& right, int t, int d) { f.right_down(right, t, d); });
  });
  write_state(s, at, sizes, state);
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
    launch<states_kernel<kWidth>>(context, chains_of<kWidth>(x), kChainCount,
                                  2 * StatesStep<kWidth>::kBytes, call, state.ptr<float>());
    constexpr int shared = kWidth * kWidth * 2 + kWidth * 128 + RowTile<kWidth>::kBytes + 64 * 128;
    launch<out_kernel<kWidth>>(context, chunks_of(x), kOutCount, shared, call, out.ptr<Half>());
  });
}

}  // namespace sash::cuda::delta
