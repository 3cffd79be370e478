#include "hopper_chain.cuh"

/// The gradients of states, and of u: from the last chunk to the first.
///
///     du = P' g_out + f k dS,    du <- du - X' beta du
///     dS <- b[last] dS + (scale b q)' g_out - (b k)' beta du
namespace sash::cuda::delta {
namespace {

template <bool kMap, int kWidth, bool kFeatures>
__device__ void walk_dstates(const ChainCall& x, const Segment& at, int first,
                             ChainShared<kWidth, kFeatures, true>& shared, const Results& to) {
  using F = Factors<kWidth>;
  float s[kWidth / 2];
  begin_chain<kWidth>(s, x, at, shared, to.g_state);
  const bool shares = !x.first_pass;
  const int half = static_cast<int>(threadIdx.x) / kChainCount;
  unsigned char* const state = shared.state + half * kChainWidth * kWidth * 2;
  unsigned char* const of_u = shared.u + half * kChainWidth * kChunk * 2;
  StepPlace<kKeySteps<kFeatures>> place;
  StepPlace<kQuerySteps> place_of_q;
  int parity = 1;
#pragma unroll 1
  for (int step = first; step < at.end; ++step) {
    auto& from = shared.keys.stage[place.stage];
    const float* const factors = shared.keys.factors[place.stage];
    auto& from_q = shared.queries.stage[place_of_q.stage];
    auto& empty = shared.keys.empty[place.stage];
    auto& empty_q = shared.queries.empty[place_of_q.stage];
    const Matrix<kChunk> p(from_q.p);
    shared.keys.full[place.stage].wait(place.parity);
    if constexpr (!kMap) shared.queries.full[place_of_q.stage].wait(place_of_q.parity);
    place.advance();
    uint32_t left[kWidth / 4], g[16], decayed[16];
    hopper::pack<Half>(left, s);
    float du[32];
    if constexpr (!kMap) {
#pragma unroll
      for (int k = 0; k < 4; ++k) from_q.values(reinterpret_cast<uint32_t(&)[4]>(g[4 * k]), k);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        decayed[i] = kFeatures ? g[i] : pack(factor_pair(factors + F::kQ, i) * unpack(g[i]));
      }
    }
    scale_sums(s, factors);
    hopper::fence_operand(s);
    hopper::warpgroup_arrive();
    multiply_by_rows<false>(du, left, from.f());
    if constexpr (!kMap && kFeatures) multiply_by_columns<true>(du, g, p);
    hopper::warpgroup_commit();
    if constexpr (!kMap) multiply_by_columns<true>(s, decayed, from_q.queries());
    hopper::warpgroup_commit();
    if (shares) {
      shared.state_free.wait(parity);
      share_left(state, left);
      shared.state_full.arrive_as_one();
    }
    hopper::warpgroup_wait<1>();
    hopper::fence_operand(du);
    if constexpr (!kFeatures) scale_sums(du, factors + F::kF);
    if constexpr (!kMap && !kFeatures) {
      shared.p_full[place_of_q.stage].wait(place_of_q.parity);
      hopper::fence_operand(du);
      hopper::warpgroup_arrive();
      multiply_by_columns<true>(du, g, p);
      hopper::warpgroup_commit();
      hopper::warpgroup_wait<0>();
      hopper::fence_operand(du);
    }
    place_of_q.advance();
    uint32_t words[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      words[i] = pack(factor_pair(factors + F::kU, i) * float2{-du[2 * i], -du[2 * i + 1]});
    }
    hopper::fence_operand(du);
    hopper::warpgroup_arrive();
    multiply_by_columns<true>(du, words, Matrix<kChunk>(from.x));
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(du);
    hopper::fence_operand(s);
    if constexpr (!kMap) empty_q.arrive_as_one();
    uint32_t minus[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      minus[i] = pack(factor_pair(factors + F::kK, i) * factor_pair(factors + F::kU, i) *
                      float2{-du[2 * i], -du[2 * i + 1]});
    }
    hopper::warpgroup_arrive();
    multiply_by_columns<true>(s, minus, from.b());
    hopper::warpgroup_commit();
    if (shares) {
      hopper::pack<Half>(words, du);
      shared.u_free.wait(parity);
      share_left(of_u, words);
      shared.u_full.arrive_as_one();
      parity ^= 1;
    }
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(s);
    empty.arrive_as_one();
  }
  end_chain<kWidth, kFeatures>(s, x, at, shared, to.dinitial);
}

/// P of decays of heads, one chunk after the other.
template <int kWidth>
__device__ void form_p(const ChainCall& x, const Segment& at, int first,
                       ChainShared<kWidth, false, true>& shared) {
  StepPlace<kKeySteps<false>> place;
  StepPlace<kQuerySteps> place_of_q;
#pragma unroll 1
  for (int step = first; step < at.end; ++step, place.advance(), place_of_q.advance()) {
    auto& from = shared.queries.stage[place_of_q.stage];
    const auto queries = from.queries();
    const auto keys = shared.keys.stage[place.stage].b();
    shared.keys.full[place.stage].wait(place.parity);
    shared.queries.full[place_of_q.stage].wait(place_of_q.parity);
    float sum[32];
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      hopper::detail::multiply_16<false, false>(kHalf, sum, queries.rows(k), keys.rows(k), k > 0);
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(sum);
    uint32_t words[16];
    scale_scores(words, sum, shared.queries.factors[place_of_q.stage] + Factors<kWidth>::kSums,
                 x.scale);
    share_left(from.p, words);
    shared.p_full[place_of_q.stage].arrive_as_one();
  }
}

template <int kWidth, bool kFeatures>
inline constexpr int kBackwardThreads = (kHalves<kWidth> + (kFeatures ? 1 : 2)) * kChainCount;

template <int kWidth, bool kFeatures>
__global__ void __launch_bounds__(kBackwardThreads<kWidth, kFeatures>, 1)
    dstates_kernel(const __grid_constant__ ChainCall x, Results to) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ChainShared<kWidth, kFeatures, true>*>(memory);
  constexpr int halves = kHalves<kWidth>;
  start_next_kernel();
  wait_for_previous_kernel();
  const Segment at(x);
  shared.init(x, at, 1, 1);
  const int first = shared.first;
  if (shared.is_done) return;
  const uint32_t group = hopper::uniform(threadIdx.x / kChainCount);
  if (group < halves) {
    if constexpr (halves == 2) hopper::warpgroup_reg_alloc<kFeatures ? 224 : 192>();
    if (at.is_map) {
      walk_dstates<true>(x, at, first, shared, to);
    } else {
      walk_dstates<false>(x, at, first, shared, to);
    }
  } else if (!kFeatures && group == halves) {
    if constexpr (halves == 2) hopper::warpgroup_reg_dealloc<72>();
    if constexpr (!kFeatures) {
      if (!at.is_map) form_p<kWidth>(x, at, first, shared);
    }
  } else {
    if constexpr (halves == 2) hopper::warpgroup_reg_dealloc<56>();
    const int one = warp() - 4 * (halves + (kFeatures ? 0 : 1));
    if (one == 0) copy_keys(x, at, first, shared);
    if (one == 1 && !at.is_map) copy_queries(x, at, first, shared);
    if (one == 2 && !x.first_pass && hopper::elect_one()) store_steps(x, at, shared);
  }
#endif
}

}  // namespace

template <int kWidth>
void hopper_dstates(const KernelContext& context, const Inputs& x, const Call& call, View g_out,
                    const Results& to) {
  ChainCall chains(call);
  chains.v_map = tensor_map(g_out, 64);
  chains.rows = to.g;
  with_gates(call.sizes, [&]<bool kFeatures>() {
    launch_chains<kWidth, kFeatures, true, dstates_kernel<kWidth, kFeatures>>(
        context, x, chains, kBackwardThreads<kWidth, kFeatures>, to);
  });
}

template void hopper_dstates<64>(const KernelContext&, const Inputs&, const Call&, View,
                                 const Results&);
template void hopper_dstates<128>(const KernelContext&, const Inputs&, const Call&, View,
                                  const Results&);

}  // namespace sash::cuda::delta
