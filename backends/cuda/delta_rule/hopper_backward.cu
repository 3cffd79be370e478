#include "hopper_chain.cuh"

/// The gradients of states, and of u: from the last chunk to the first.
///
///     du = P' g_out + F dS,    dS <- e dS + Q' g_out - W' du
namespace sash::cuda::delta {
namespace {

template <int kWidth, bool kFeatures>
__device__ void walk_dstates(const ChainCall& x, const ChainColumns<kWidth>& at,
                             ChainShared<kWidth>& shared, const Results& to) {
  float s[kWidth / 2];
  begin_state(s, at, x.sizes, to.g_state);
#pragma unroll 1
  for (int step = 0; step < at.chunks; ++step) {
    auto& from = shared.stage[step % kSteps];
    shared.full[step % kSteps].wait(step / kSteps % 2);
    uint32_t left[kWidth / 4], g[16], decayed[4][4];
    hopper::pack<Half>(left, s);
    const RowTile<kChainWidth> g_out(shared_address(from.v));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      g_out.left_down(decayed[k], k, warp() % 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) g[4 * k + i] = decayed[k][i];
      if constexpr (!kFeatures) {
        scale_columns(decayed[k], from.factors + kWidth + kChunk + 16 * k);
      }
    }
    scale_sums(s, from.factors);
    float du[32], of_scores[32];
    hopper::fence_operand(s);
    hopper::warpgroup_arrive();
    multiply_by_rows(du, left, Matrix<kWidth, !kFeatures>(from.f));
    multiply_by_columns<false>(of_scores, g, Matrix<kChunk>(from.p));
    hopper::warpgroup_commit();
    multiply_by_columns<true>(s, reinterpret_cast<const uint32_t(&)[16]>(decayed),
                              Matrix<kWidth, !kFeatures>(from.q));
    hopper::warpgroup_commit();
    shared.state_free.wait((step + 1) % 2);
    share_left(shared.state, left);
    shared.state_full.arrive_as_one();
    hopper::warpgroup_wait<1>();
    hopper::fence_operand(du);
    hopper::fence_operand(of_scores);
    if constexpr (!kFeatures) scale_sums(du, from.factors + kWidth);
#pragma unroll
    for (int i = 0; i < 32; ++i) du[i] += of_scores[i];
    uint32_t words[16], minus[16];
    hopper::pack<Half>(words, du);
#pragma unroll
    for (int i = 0; i < 16; ++i) minus[i] = words[i] ^ 0x80008000u;
    hopper::warpgroup_arrive();
    multiply_by_columns<true>(s, minus, Matrix<kWidth>(from.w));
    hopper::warpgroup_commit();
    shared.u_free.wait((step + 1) % 2);
    share_left(shared.corrected, words);
    shared.u_full.arrive_as_one();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(s);
    shared.empty[step % kSteps].arrive_as_one();
  }
  write_state(s, at, x.sizes, to.dinitial);
}

template <int kWidth, bool kFeatures>
__global__ void __launch_bounds__(kChainThreads, 1)
    dstates_kernel(const __grid_constant__ ChainCall x, Results to) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  if (static_cast<int>(blockIdx.x) >= x.chains) {
    return prepare_chunks<kWidth, kFeatures, true>(x, memory);
  }
  auto& shared = *reinterpret_cast<ChainShared<kWidth>*>(memory);
  shared.init(4, 1);
  const ChainColumns<kWidth> at(x.sizes);
  const uint32_t group = hopper::uniform(threadIdx.x / kCount);
  if (group == 0) {
    hopper::warpgroup_reg_alloc<240>();
    walk_dstates<kWidth, kFeatures>(x, at, shared, to);
  } else {
    hopper::warpgroup_reg_dealloc<96>();
    if (warp() == 8) copy_steps<kWidth, kFeatures, true>(x, at, shared);
    if (warp() == 9 && hopper::elect_one()) {
      store_steps<kWidth, true>(x, at, shared, x.arrays.dstates, x.arrays.du);
    }
  }
#endif
}

}  // namespace

template <int kWidth>
void hopper_dstates(const KernelContext& context, const Inputs& x,
                    const PreparedMemory<kWidth>& prepared, const Arrays& arrays, View g_out,
                    const Results& to) {
  ChainCall call(x, arrays);
  call.g_map = tensor_map(g_out, 64);
  call.g_out = to.g;
  with_gates(call.sizes, [&]<bool kFeatures>() {
    launch_chains<kWidth, kFeatures, dstates_kernel<kWidth, kFeatures>>(context, x, prepared, call,
                                                                        to);
  });
}

template void hopper_dstates<64>(const KernelContext&, const Inputs&, const PreparedMemory<64>&,
                                 const Arrays&, View, const Results&);
template void hopper_dstates<128>(const KernelContext&, const Inputs&, const PreparedMemory<128>&,
                                  const Arrays&, View, const Results&);

}  // namespace sash::cuda::delta
