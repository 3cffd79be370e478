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
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& sizes = x.sizes;
  const ChainColumns<kWidth> at(sizes);
  float s[kWidth / 2];
  begin_state(s, at, sizes, x.initial);
  const auto copy = [&](const Place& place, unsigned char* to) {
    const int64_t index = x.index(place, at.head);
    S::copy(x.arrays, index, to);
    copy_array<kChainCount, S::kSquare>(static_cast<int>(threadIdx.x), shared_address(to + S::kV),
                                        x.arrays.u + (index * kWidth + at.first) * kChunk);
  };
  walk<false, S::kBytes>(at, sizes, shared, copy, [&](const Place& place, unsigned char* from) {
    const int64_t index = x.index(place, at.head);
    const Panel<kWidth> w(shared_address(from + S::kW)), f(shared_address(from + S::kF)),
        q(shared_address(from + S::kQ));
    const Panel<kChunk> p(shared_address(from + S::kP));
    uint32_t left[kWidth / 4], corrected[16];
    pack(left, s);
    float u[32] = {}, sum[32] = {};  // u', out'
    add_product<kWidth / 16>(u, left, [&](auto& right, int k, int t) { w.right(right, t, k); });
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 own =
          unpack(word_at(from, S::kV + Panel<kChunk>::word(warp() * 2 + i % 2, i / 2)));
      u[2 * i] = own.x - u[2 * i];
      u[2 * i + 1] = own.y - u[2 * i + 1];
    }
    pack(corrected, u);
    if (x.arrays.states) {
      store_left(x.arrays.states + index * (kWidth * kWidth), left, at.first);
      store_left(x.arrays.corrected + index * (kWidth * kChunk), corrected, at.first);
    }
    add_product<kWidth / 16>(sum, left, [&](auto& right, int k, int t) { q.right(right, t, k); });
    add_product<4>(sum, corrected, [&](auto& right, int k, int t) { p.right(right, t, k); });
    scale_sums(s, reinterpret_cast<const float*>(from + S::kE));
    add_product<4>(s, corrected, [&](auto& right, int t, int d) { f.right_down(right, t, d); });
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
    if (kept) {
      const KeptMemory<kWidth> memory(context, x, kept);
      arrays.states = memory.states;
      arrays.corrected = memory.corrected;
    }
    if (hopper) return hopper_forward(context, x, prepared, arrays, out, state);
    const Call call(x, arrays);
    prepare<kWidth>(context, call);
    launch<forward_kernel<kWidth>>(context, chains_of<kWidth>(x), kChainCount,
                                   2 * MmaStep<kWidth>::kBytes, call, state.ptr<float>(),
                                   out.ptr<Half>());
  });
}

}  // namespace sash::cuda::delta
