#include "../attention/common/limits.h"
#include "../attention/common/named_kernels.h"
#include "hopper_chain.cuh"

namespace sash::cuda::delta {
namespace {

/// S' and u' from chunk to chunk. Between two batches of products there is only what the second one
/// needs. Each group of four words of a left operand is stored behind its product. What a batch
/// reads besides is loaded while the one before it runs.
template <int kWidth, bool kFeatures>
__device__ void walk_states(const ChainCall& x, const ChainColumns<kWidth>& at,
                            ChainShared<kWidth>& shared, float* state) {
  float s[kWidth / 2];
  uint32_t own[16];  // of U'
  begin_state(s, at, x.sizes, x.initial);
  int stage = 0, phase = 0;
  const auto begin = [&](int step) {
    if (step >= at.chunks) return;
    shared.full[stage].wait(phase);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      own[i] = word_at(shared.stage[stage].v, Panel<kChunk>::word(warp() % 4 * 2 + i % 2, i / 2));
    }
  };
  begin(0);
  const uint32_t state_row = left_row<kWidth>(shared.state),
                 corrected_row = left_row<kChunk>(shared.corrected);
#pragma unroll 1
  for (int step = 0; step < at.chunks; ++step) {
    auto& from = shared.stage[stage];
    auto& empty = shared.empty[stage];
    const Matrix<kWidth> w(from.w);
    const Matrix<kWidth, !kFeatures> f(from.f);
    stage = stage + 1 < kSteps ? stage + 1 : 0;
    phase ^= stage == 0 ? 1 : 0;
    uint32_t left[kWidth / 4];
    hopper::pack<Half>(left, s);
    scale_sums(s, from.factors);
    float u[32];
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      hopper::detail::multiply_16<false>(kHalf, u, left + 4 * k, w.rows(k), k > 0);
      store_left_16(state_row, left, k);
    }
    hopper::warpgroup_commit();
    hopper::fence_proxy_async();
    shared.state_full.arrive_as_one();
    float2 decays[8];
    if constexpr (!kFeatures) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        decays[j] =
            *reinterpret_cast<const float2*>(from.factors + kWidth + 8 * j + lane() % 4 * 2);
      }
    }
    shared.u_free.wait((step + 1) % 2);
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(u);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 pair = unpack(own[i]);
      u[2 * i] = pair.x - u[2 * i];
      u[2 * i + 1] = pair.y - u[2 * i + 1];
    }
    uint32_t corrected[16], decayed[16];
    hopper::pack<Half>(corrected, u);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      decayed[i] = kFeatures ? corrected[i] : pack(decays[i / 2] * float2{u[2 * i], u[2 * i + 1]});
    }
    hopper::fence_operand(s);
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      hopper::detail::multiply_16<true>(kHalf, s, decayed + 4 * k, f.columns(k), true);
      store_left_16(corrected_row, corrected, k);
    }
    hopper::warpgroup_commit();
    hopper::fence_proxy_async();
    shared.u_full.arrive_as_one();
    shared.state_free.wait(step % 2);
    begin(step + 1);
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(s);
    empty.arrive_as_one();
  }
  write_state(s, at, x.sizes, state);
}

/// out = Q S + P u, one chunk after the other.
template <int kWidth, bool kFeatures>
__device__ void form_out(const ChainCall& x, const ChainColumns<kWidth>& at,
                         ChainShared<kWidth>& shared, Half* out) {
  const Sizes& s = x.sizes;
  const Matrix<kWidth> state(shared.state);
  const Matrix<kChunk> u(shared.corrected);
  const int row = warp() % 4 * 16 + lane() / 4;
#pragma unroll 1
  for (int step = 0; step < at.chunks; ++step) {
    const Place place = at.template place<false>(s, step);
    auto& from = shared.stage[step % kSteps];
    const Matrix<kWidth, !kFeatures> queries(from.q);
    const Matrix<kChunk> p(from.p);
    shared.full[step % kSteps].wait(step / kSteps % 2);
    float by[2] = {1, 1};
    if constexpr (!kFeatures) {
      by[0] = from.factors[kWidth + kChunk + row];
      by[1] = from.factors[kWidth + kChunk + row + 8];
    }
    shared.state_full.wait(step % 2);
    float sum[32];
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      hopper::detail::multiply_16<false, false>(kHalf, sum, queries.rows(k), state.rows(k), k > 0);
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(sum);
    shared.state_free.arrive_as_one();
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] *= by[i / 2 % 2];
    shared.u_full.wait(step % 2);
    hopper::fence_operand(sum);
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      hopper::detail::multiply_16<false, false>(kHalf, sum, p.rows(k), u.rows(k), true);
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(sum);
    shared.u_free.arrive_as_one();
    shared.empty[step % kSteps].arrive_as_one();
    const int64_t token = (int64_t{place.b} * s.value_heads + at.head) * s.length + place.first;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = row + 8 * half;
      Half* const to = out + (token + t) * s.width + at.first;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int m = column_in(j, 0);
        if (t >= place.count || at.first + m >= s.width) continue;
        word_at(to + m, 0) = pack({sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]});
      }
    }
  }
}

template <int kWidth, bool kFeatures>
__global__ void __launch_bounds__(kChainThreads, 1)
    forward_kernel(const __grid_constant__ ChainCall x, float* state, Half* out) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  if (static_cast<int>(blockIdx.x) >= x.chains) {
    return prepare_chunks<kWidth, kFeatures, false>(x, memory);
  }
  auto& shared = *reinterpret_cast<ChainShared<kWidth>*>(memory);
  const bool kept = x.arrays.states != nullptr;
  shared.init(8, kept ? 5 : 4);
  const ChainColumns<kWidth> at(x.sizes);
  const uint32_t group = hopper::uniform(threadIdx.x / kCount);
  if (group == 2) {
    hopper::warpgroup_reg_dealloc<96>();
    if (warp() == 8) copy_steps<kWidth, kFeatures, false>(x, at, shared);
    if (warp() == 9 && kept && hopper::elect_one()) {
      store_steps<kWidth, false>(x, at, shared, x.arrays.states, x.arrays.corrected);
    }
  } else if (group == 1) {
    form_out<kWidth, kFeatures>(x, at, shared, out);
  } else {
    hopper::warpgroup_reg_alloc<240>();
    walk_states<kWidth, kFeatures>(x, at, shared, state);
  }
#endif
}

}  // namespace

bool hopper_takes(const KernelContext& context, const Inputs& x) {
  return named_attention_kernels() != AttentionKernels::mma && has_hopper_code(context.device) &&
         fits_tensor_map(x.q) && fits_tensor_map(x.k) &&
         shared_memory_limit(context.device) >= static_cast<int>(hopper::kSharedBytes);
}

template <int kWidth>
void hopper_forward(const KernelContext& context, const Inputs& x,
                    const PreparedMemory<kWidth>& prepared, const Arrays& arrays, View out,
                    View state) {
  ChainCall call(x, arrays);
  with_gates(call.sizes, [&]<bool kFeatures>() {
    launch_chains<kWidth, kFeatures, forward_kernel<kWidth, kFeatures>>(
        context, x, prepared, call, state.ptr<float>(), out.ptr<Half>());
  });
}

template void hopper_forward<64>(const KernelContext&, const Inputs&, const PreparedMemory<64>&,
                                 const Arrays&, View, View);
template void hopper_forward<128>(const KernelContext&, const Inputs&, const PreparedMemory<128>&,
                                  const Arrays&, View, View);

}  // namespace sash::cuda::delta
