#include "../attention/common/limits.h"
#include "../attention/common/named_kernels.h"
#include "hopper_chain.cuh"

namespace sash::cuda::delta {
namespace {

constexpr int kMostRunLog2 = 3;

/// S' and w' from chunk to chunk.
template <int kWidth, bool kFeatures>
__device__ void walk_states(const ChainCall& x, const Segment& at, int first,
                            ChainShared<kWidth, kFeatures, false>& shared, float* state) {
  using F = Factors<kWidth>;
  float s[kWidth / 2];
  begin_chain<kWidth>(s, x, at, shared, x.initial);
  const bool shares = !x.first_pass;
  const int half = static_cast<int>(threadIdx.x) / kChainCount;
  const uint32_t state_row = left_row<kWidth>(shared.state + half * kChainWidth * kWidth * 2),
                 u_row = left_row<kChunk>(shared.u + half * kChainWidth * kChunk * 2);
  StepPlace<kKeySteps<kFeatures>> place;
  int parity = 1;
  int64_t index = x.index(at.place<false>(x.sizes, first), at.head);
#pragma unroll 1
  for (int step = first; step < at.end; ++step, index += x.sizes.value_heads) {
    auto& from = shared.keys.stage[place.stage];
    const float* const factors = shared.keys.factors[place.stage];
    auto& empty = shared.keys.empty[place.stage];
    shared.keys.full[place.stage].wait(place.parity);
    place.advance();
    uint32_t left[kWidth / 4];
    hopper::pack<Half>(left, s);
    const auto b = from.b();
    float w[32];
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      hopper::detail::multiply_16<false>(kHalf, w, left + 4 * k, b.rows(k), k > 0);
    }
    hopper::warpgroup_commit();
    if (shares) {
      shared.state_free.wait(parity);
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) store_left_16(state_row, left, k);
      hopper::fence_proxy_async();
      shared.state_full.arrive_as_one();
    }
    scale_sums(s, factors);
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(w);
    // y = v - S (b k), then w = y - X beta y
    uint32_t words[16] = {};
    if (!at.is_map) {
#pragma unroll
      for (int k = 0; k < 4; ++k) from.values(reinterpret_cast<uint32_t(&)[4]>(words[4 * k]), k);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 v = unpack(words[i]), by = factor_pair(factors + F::kK, i);
      w[2 * i] = v.x - by.x * w[2 * i];
      w[2 * i + 1] = v.y - by.y * w[2 * i + 1];
      words[i] = pack(factor_pair(factors + F::kU, i) * float2{-w[2 * i], -w[2 * i + 1]});
    }
    hopper::fence_operand(w);
    hopper::warpgroup_arrive();
    multiply_by_rows<true>(w, words, Matrix<kChunk>(from.x));
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(w);
    uint32_t kept[16], decayed[16];  // w', f u'
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 pair{w[2 * i], w[2 * i + 1]}, u = factor_pair(factors + F::kU, i) * pair;
      kept[i] = pack(pair);
      words[i] = pack(u);
      decayed[i] = pack(factor_pair(factors + F::kF, i) * u);
    }
    hopper::fence_operand(s);
    hopper::warpgroup_arrive();
    multiply_by_columns<true>(s, decayed, from.f());
    hopper::warpgroup_commit();
    if (shares) {
      shared.u_free.wait(parity);
#pragma unroll
      for (int k = 0; k < 4; ++k) store_left_16(u_row, words, k);
      hopper::fence_proxy_async();
      shared.u_full.arrive_as_one();
      parity ^= 1;
      if (x.arrays.w) store_left(x.arrays.w + index * (kWidth * kChunk), kept, half * kChainWidth);
    }
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(s);
    empty.arrive_as_one();
  }
  end_chain<kWidth, kFeatures>(s, x, at, shared, state);
}

/// out = Q S + P u, one chunk after the other.
template <int kWidth, bool kFeatures>
__device__ void form_out(const ChainCall& x, const Segment& at,
                         ChainShared<kWidth, kFeatures, false>& shared, Half* out) {
  using F = Factors<kWidth>;
  const Sizes& s = x.sizes;
  const Matrix<kWidth> state(shared.state);
  const Matrix<kChunk> u(shared.u);
  const int row = warp() % 4 * 16 + lane() / 4;
  StepPlace<kQuerySteps> from_place;
  StepPlace<kKeySteps<kFeatures>> key_place;
#pragma unroll 1
  for (int step = at.first; step < at.end; ++step, from_place.advance(), key_place.advance()) {
    const int parity = (step - at.first) % 2;
    const Place place = at.place<false>(s, step);
    auto& from = shared.queries.stage[from_place.stage];
    const float* const factors = shared.queries.factors[from_place.stage];
    const auto queries = from.queries();
    shared.queries.full[from_place.stage].wait(from_place.parity);
    [[maybe_unused]] float p_sum[32];
    if constexpr (!kFeatures) {
      const auto keys = shared.keys.stage[key_place.stage].b();
      shared.keys.full[key_place.stage].wait(key_place.parity);
      hopper::warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) {
        hopper::detail::multiply_16<false, false>(kHalf, p_sum, queries.rows(k), keys.rows(k),
                                                  k > 0);
      }
      hopper::warpgroup_commit();
    }
    const float by[2] = {factors[F::kQ + row], factors[F::kQ + row + 8]};
    shared.state_full.wait(parity);
    float sum[kWidth / 2];
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      hopper::detail::multiply_16<false, false>(kHalf, sum, queries.rows(k), state.rows(k), k > 0);
    }
    hopper::warpgroup_commit();
    uint32_t words_of_p[16];
    if constexpr (!kFeatures) {
      hopper::warpgroup_wait<1>();
      hopper::fence_operand(p_sum);
      shared.keys.empty[key_place.stage].arrive_as_one();
      scale_scores(words_of_p, p_sum, factors + F::kSums, x.scale);
    }
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(sum);
    shared.state_free.arrive_as_one();
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) sum[i] *= by[i / 2 % 2];
    shared.u_full.wait(parity);
    hopper::fence_operand(sum);
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kFeatures) {
        const Matrix<kChunk> p(from.p);
        hopper::detail::multiply_16<false, false>(kHalf, sum, p.rows(k), u.rows(k), true);
      } else {
        hopper::detail::multiply_16<false>(kHalf, sum, words_of_p + 4 * k, u.rows(k), true);
      }
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(sum);
    shared.u_free.arrive_as_one();
    hopper::barrier_sync(2, kChainCount);  // all warps have read the queries
    const int64_t token = (int64_t{place.b} * s.value_heads + at.head) * s.length + place.first;
    write_rows<kWidth>(sum, from.q, out + token * s.width, s.width, place.count, s.width);
    hopper::fence_proxy_async();
    shared.queries.empty[from_place.stage].arrive_as_one();
  }
}

template <int kWidth>
inline constexpr int kForwardThreads = (kHalves<kWidth> + 2) * kChainCount;

template <int kWidth, bool kFeatures>
__global__ void __launch_bounds__(kForwardThreads<kWidth>, 1)
    forward_kernel(const __grid_constant__ ChainCall x, float* state, Half* out) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ChainShared<kWidth, kFeatures, false>*>(memory);
  constexpr int halves = kHalves<kWidth>;
  const bool kept = x.arrays.states != nullptr;
  start_next_kernel();
  wait_for_previous_kernel();
  const Segment at(x);
  shared.init(x, at, kept ? 5 : 4, 4);
  const int first = shared.first;
  if (shared.is_done) return;
  const uint32_t group = hopper::uniform(threadIdx.x / kChainCount);
  if (group == halves + 1) {
    hopper::warpgroup_reg_dealloc<halves == 2 ? 48 : 96>();
    const int one = warp() - 4 * (halves + 1);
    if (one == 0) copy_keys(x, at, first, shared);
    if (x.first_pass) return;
    if (one == 1) copy_queries(x, at, first, shared);
    if (one == 2 && kept && hopper::elect_one()) store_steps(x, at, shared);
  } else if (group == halves) {
    if (!x.first_pass) form_out(x, at, shared, out);
  } else {
    hopper::warpgroup_reg_alloc<halves == 2 ? 168 : 240>();
    walk_states(x, at, first, shared, state);
  }
#endif
}

}  // namespace

bool hopper_takes(const KernelContext& context, const Inputs& x) {
  return named_attention_kernels() != AttentionKernels::mma && has_hopper_code(context.device) &&
         fits_tensor_map(x.q) && fits_tensor_map(x.k) && fits_tensor_map(x.v) &&
         shared_memory_limit(context.device) >= static_cast<int>(hopper::kSharedBytes);
}

int hopper_run_log2(const KernelContext& context, const Inputs& x) {
  // The longest run with which the multiprocessors are as busy as with single chunks.
  const auto steps = [&](int log2) {
    const int64_t runs = ceil_div(x.slots(), int64_t{1} << log2) * x.v.shape[1];
    return ceil_div(runs, hopper::multiprocessors(context)) << log2;
  };
  int log2 = kMostRunLog2;
  while (log2 > 0 && 20 * steps(log2) > 21 * steps(0)) --log2;
  return log2;
}

template <int kWidth>
void hopper_forward(const KernelContext& context, const Inputs& x, const Call& call, View out,
                    View state) {
  ChainCall chains(call);
  chains.v_map = tensor_map(x.v, 64);
  chains.rows = call.v;
  with_gates(call.sizes, [&]<bool kFeatures>() {
    launch_chains<kWidth, kFeatures, false, forward_kernel<kWidth, kFeatures>>(
        context, x, chains, kForwardThreads<kWidth>, state.ptr<float>(), out.ptr<Half>());
  });
}

template void hopper_forward<64>(const KernelContext&, const Inputs&, const Call&, View, View);
template void hopper_forward<128>(const KernelContext&, const Inputs&, const Call&, View, View);

}  // namespace sash::cuda::delta
