#include <algorithm>

#include "../attention/common/launch.cuh"
#include "../hopper/tensor_map.h"
#include "../shape/readable.h"
#include "hopper.cuh"

/// The gradients of states, and of u: from the last chunk to the first.
///
///     du = P' g_out + f k dS,    du <- du - X' beta du
///     dS <- b[last] dS + (scale b q)' g_out - (b k)' beta du
namespace sash::cuda::delta {
namespace {

template <int kWidth>
__global__ void __launch_bounds__(kChainCount)
    dstates_kernel(const __grid_constant__ Call x, Results to) {
  using S = MmaStep<kWidth>;
  using F = Factors<kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& sizes = x.sizes;
  const auto at = ChainColumns<kWidth>::of_block(sizes);
  float s[kWidth / 2];
  begin_state(s, at, sizes, to.g_state);
  const auto copy = [&](const Place& place, unsigned char* to_step) {
    S::copy(x.arrays, x.index(place, at.head), place, at.first, to.g.at(place.b, at.head), to_step);
  };
  walk<true, S::kBytes>(at, sizes, shared, copy, [&](const Place& place, unsigned char* from) {
    const int64_t index = x.row_index(place, at.head);
    const Panel<kWidth> b(shared_address(from + S::kB)), f(shared_address(from + S::kF)),
        q(shared_address(from + S::kQ));
    const Panel<kChunk> p(shared_address(from + S::kP)), of_du(shared_address(from + S::kX));
    uint32_t left[kWidth / 4], of_g[16], words[16];
    pack(left, s);
    store_left(x.arrays.dstates[at.first / 64] + index * (kWidth * kChunk), left, 0);
    float du[32] = {};
    add_product<kWidth / 16>(du, left, [&](auto& right, int k, int t) { f.right(right, t, k); });
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      S::values(reinterpret_cast<uint32_t(&)[4]>(of_g[4 * k]), from, k);
    }
    add_product<4>(du, of_g, [&](auto& right, int k, int t) { p.right_down(right, k, t); });
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      words[i] = pack(S::pair(from, F::kU, i) * float2{-du[2 * i], -du[2 * i + 1]});
    }
    add_product<4>(du, words, [&](auto& right, int k, int t) { of_du.right_down(right, k, t); });
    pack(words, du);
    store_left(x.arrays.du + index * (kWidth * kChunk), words, at.first);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      words[i] = pack(S::pair(from, F::kK, i) * S::pair(from, F::kU, i) *
                      float2{-du[2 * i], -du[2 * i + 1]});
    }
    scale_sums(s, reinterpret_cast<const float*>(from + S::kFactors));
    add_product<4>(s, of_g, [&](auto& right, int t, int d) { q.right_down(right, t, d); });
    add_product<4>(s, words, [&](auto& right, int t, int d) { b.right_down(right, t, d); });
  });
  write_state(s, at, sizes, to.dinitial);
}

}  // namespace

void mma_backward(KernelContext& context, const Inputs& x, const Gradients& grads) {
  with_width(x, [&]<int kWidth>() {
    const bool hopper = hopper_takes(context, x), panels = !hopper || Sizes(x).gates > 1;
    const int run_log2 = panels ? kAllStates : hopper_run_log2(context, x);
    const KeptMemory<kWidth> kept(x, run_log2, grads.kept);
    const PassedMemory<kWidth> passed(context, x, grads);
    const PreparedMemory<kWidth> prepared(context, x, panels, panels ? nullptr : kept.end);
    Arrays arrays = prepared.arrays;
    arrays.states = kept.states;
    arrays.w = kept.w;
    arrays.run_log2 = run_log2;
    std::copy_n(passed.dstates, 2, arrays.dstates);
    arrays.du = passed.du;
    const Call call(x, arrays);
    if (panels) prepare<kWidth>(context, call);
    const int64_t group = x.v.shape[1] / x.q.shape[1];
    const int64_t part = x.v.numel() / x.v.shape[3] * x.q.shape[3];
    const Workspace parts(context, group > 1 ? 2 * part * 4 : 0);
    const bool vectors = rows_of<const Half>(grads.g_out).vectors;
    const Readable g_out(context, grads.g_out,
                         vectors && (!hopper || fits_tensor_map(grads.g_out)));
    const Results to(grads, g_out.view(), group > 1 ? parts.ptr<float>() : nullptr);
    if (hopper) {
      hopper_dstates<kWidth>(context, x, call, g_out.view(), to);
    } else {
      launch<dstates_kernel<kWidth>>(context, chains_of<kWidth>(x), kChainCount,
                                     2 * MmaStep<kWidth>::kBytes, call, to);
    }
    if (hopper && call.sizes.gates == 1) {
      hopper_gradients<kWidth>(context, x, call, g_out.view(), to);
    } else {
      run_gradients<kWidth>(context, call, to);
    }
    join_parts(context, call, to);
  });
}

}  // namespace sash::cuda::delta
