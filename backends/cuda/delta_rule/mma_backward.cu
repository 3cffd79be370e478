#include "../attention/common/launch.cuh"
#include "../hopper/tensor_map.h"
#include "../shape/readable.h"
#include "hopper.cuh"

/// The gradients of states, and of u: from the last chunk to the first.
///
///     du = P' g_out + F dS,    dS <- e dS + Q' g_out - W' du
namespace sash::cuda::delta {
namespace {

template <int kWidth>
__global__ void __launch_bounds__(kChainCount)
    dstates_kernel(const __grid_constant__ Call x, Results to) {
  using S = MmaStep<kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& sizes = x.sizes;
  const ChainColumns<kWidth> at(sizes);
  float s[kWidth / 2];
  begin_state(s, at, sizes, to.g_state);
  const auto copy = [&](const Place& place, unsigned char* to_step) {
    S::copy(x.arrays, x.index(place, at.head), to_step);
    const Rows<const Half> g = to.g.at(place.b, at.head);
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kChunk * 8; i += kChainCount) {
      const int t = i / 8, m = i % 8 * 8;
      copy_async(shared_address(to_step + S::kV + Panel<kChainWidth>::element(t, m)),
                 g.data + (place.first + t) * g.row + at.first + m,
                 t < place.count && at.first + m < g.width);
    }
  };
  walk<true, S::kBytes>(at, sizes, shared, copy, [&](const Place& place, unsigned char* from) {
    const int64_t index = x.index(place, at.head);
    const Panel<kWidth> w(shared_address(from + S::kW)), f(shared_address(from + S::kF)),
        q(shared_address(from + S::kQ));
    const Panel<kChunk> p(shared_address(from + S::kP)), g(shared_address(from + S::kV));
    uint32_t left[kWidth / 4], of_g[16], minus[16];
    pack(left, s);
    store_left(x.arrays.dstates + index * (kWidth * kWidth), left, at.first);
    float du[32] = {};
    add_product<kWidth / 16>(du, left, [&](auto& right, int k, int t) { f.right(right, t, k); });
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      g.left_down(reinterpret_cast<uint32_t(&)[4]>(of_g[4 * k]), k, warp());
    }
    add_product<4>(du, of_g, [&](auto& right, int k, int t) { p.right_down(right, k, t); });
    pack(minus, du);
    store_left(x.arrays.du + index * (kWidth * kChunk), minus, at.first);
    for (uint32_t& pair : minus) pair ^= 0x80008000u;
    scale_sums(s, reinterpret_cast<const float*>(from + S::kE));
    add_product<4>(s, of_g, [&](auto& right, int t, int d) { q.right_down(right, t, d); });
    add_product<4>(s, minus, [&](auto& right, int t, int d) { w.right_down(right, t, d); });
  });
  write_state(s, at, sizes, to.dinitial);
}

}  // namespace

void mma_backward(KernelContext& context, const Inputs& x, const Gradients& grads) {
  with_width(x, [&]<int kWidth>() {
    const bool hopper = hopper_takes(context, x);
    const PreparedMemory<kWidth> prepared(context, x, true, hopper && Sizes(x).gates == 1);
    const KeptMemory<kWidth> kept(context, x, &grads.kept), own(context, x, nullptr);
    Arrays arrays = prepared.arrays;
    arrays.states = kept.states;
    arrays.corrected = kept.corrected;
    arrays.dstates = own.states;
    arrays.du = own.corrected;
    const Call call(x, arrays);
    const int64_t group = x.v.shape[1] / x.q.shape[1];
    const int64_t part = x.v.numel() / x.v.shape[3] * x.q.shape[3];
    const Workspace parts(context, group > 1 ? 2 * part * 4 : 0);
    const bool vectors = rows_of<const Half>(grads.g_out).vectors;
    const Readable g_out(context, grads.g_out,
                         vectors && (!hopper || fits_tensor_map(grads.g_out)));
    const Results to(grads, g_out.view(), group > 1 ? parts.ptr<float>() : nullptr);
    if (hopper) {
      hopper_dstates(context, x, prepared, arrays, g_out.view(), to);
    } else {
      prepare<kWidth>(context, call);
      launch<dstates_kernel<kWidth>>(context, chains_of<kWidth>(x), kChainCount,
                                     2 * MmaStep<kWidth>::kBytes, call, to);
    }
    run_gradients<kWidth>(context, call, to);
  });
}

}  // namespace sash::cuda::delta
