#include <optional>

#include "../attention/common/launch.cuh"
#include "../attention/common/limits.h"
#include "hopper.cuh"

/// States and results by the instructions of sm_80.
namespace sash::cuda::delta {
namespace {

template <int kWidth>
__global__ void __launch_bounds__(kChainCount)
    forward_kernel(const __grid_constant__ Call x, float* state, Half* out) {
  using S = MmaStep<kWidth>;
  using F = Factors<kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& sizes = x.sizes;
  const auto at = ChainColumns<kWidth>::of_block(sizes);
  float s[kWidth / 2];
  begin_state(s, at, sizes, x.initial);
  const auto copy = [&](const Place& place, unsigned char* to) {
    S::copy(x.arrays, x.index(place, at.head), place, at.first, x.v.at(place.b, at.head), to);
  };
  walk<false, S::kBytes>(at, sizes, shared, copy, [&](const Place& place, unsigned char* from) {
    const int64_t index = x.index(place, at.head);
    const Panel<kWidth> b(shared_address(from + S::kB)), f(shared_address(from + S::kF)),
        q(shared_address(from + S::kQ));
    const Panel<kChunk> p(shared_address(from + S::kP)), of_y(shared_address(from + S::kX));
    uint32_t left[kWidth / 4], words[16], minus[16];
    pack(left, s);
    float w[32] = {}, sum[32] = {};  // y' and then w', out'
    add_product<kWidth / 16>(w, left, [&](auto& right, int k, int t) { b.right(right, t, k); });
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      S::values(reinterpret_cast<uint32_t(&)[4]>(words[4 * k]), from, k);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 v = unpack(words[i]), by = S::pair(from, F::kK, i);
      w[2 * i] = v.x - by.x * w[2 * i];
      w[2 * i + 1] = v.y - by.y * w[2 * i + 1];
      minus[i] = pack(S::pair(from, F::kU, i) * float2{-w[2 * i], -w[2 * i + 1]});
    }
    add_product<4>(w, minus, [&](auto& right, int k, int t) { of_y.right(right, t, k); });
    pack(words, w);
    if (x.arrays.states) {
      store_left(x.arrays.states + index * (kWidth * kWidth), left, at.first);
      store_left(x.arrays.w + index * (kWidth * kChunk), words, at.first);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {  // u'
      words[i] = pack(S::pair(from, F::kU, i) * float2{w[2 * i], w[2 * i + 1]});
    }
    add_product<kWidth / 16>(sum, left, [&](auto& right, int k, int t) { q.right(right, t, k); });
    add_product<4>(sum, words, [&](auto& right, int k, int t) { p.right(right, t, k); });
    scale_sums(s, reinterpret_cast<const float*>(from + S::kFactors));
    add_product<4>(s, words, [&](auto& right, int t, int d) { f.right_down(right, t, d); });
    const int64_t token = (int64_t{place.b} * sizes.value_heads + at.head) * sizes.length;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int t = column_in(i / 4, i % 4), m = at.first + warp() * 16 + row_in(i % 4);
      if (t >= place.count || m >= sizes.width) continue;
      out[(token + place.first + t) * sizes.width + m] = narrow<Half>(sum[i]);
    }
  });
  write_state(s, at, sizes, state);
}

/// Whether the forward pass keeps what `prepare` writes for the backward pass.
bool keeps_prepared(const KernelContext& context, const Inputs& x) {
  return hopper_takes(context, x) && Sizes(x).gates == 1;
}

}  // namespace

bool mma_takes(const KernelContext& context, const Inputs& x) {
  if (x.q.dtype != DType::bfloat16 || std::max(x.q.shape[3], x.v.shape[3]) > 128 ||
      x.q.shape[2] < kChunk) {
    return false;
  }
  for (const TensorView* rows : {&x.q, &x.k, &x.v}) {
    if (!rows_of<const Half>(*rows).vectors) return false;
  }
  return shared_memory_limit(context.device) >= gradient_bytes(x);
}

int64_t mma_kept_bytes(const KernelContext& context, const Inputs& x) {
  int64_t bytes = 0;
  with_width(x, [&]<int kWidth>() {
    const bool prepared = keeps_prepared(context, x);
    bytes = KeptMemory<kWidth>::bytes_of(x, prepared ? hopper_run_log2(context, x) : kAllStates);
    if (prepared) bytes += PreparedMemory<kWidth>::bytes_of(x, false);
  });
  return bytes;
}

void mma_forward(KernelContext& context, const Inputs& x, View out, View state,
                 const TensorView* kept) {
  with_width(x, [&]<int kWidth>() {
    const bool hopper = hopper_takes(context, x), panels = !hopper || Sizes(x).gates > 1;
    const int run_log2 = panels ? kAllStates : hopper_run_log2(context, x);
    std::optional<KeptMemory<kWidth>> memory;
    if (kept) memory.emplace(x, run_log2, *kept);
    const PreparedMemory<kWidth> prepared(context, x, panels,
                                          kept && !panels ? memory->end : nullptr);
    Arrays arrays = prepared.arrays;
    if (kept) arrays.states = memory->states, arrays.w = memory->w, arrays.run_log2 = run_log2;
    const Call call(x, arrays);
    prepare<kWidth>(context, call);
    if (hopper) return hopper_forward<kWidth>(context, x, call, out, state);
    launch<forward_kernel<kWidth>>(context, chains_of<kWidth>(x), kChainCount,
                                   2 * MmaStep<kWidth>::kBytes, call, state.ptr<float>(),
                                   out.ptr<Half>());
  });
}

}  // namespace sash::cuda::delta
