#include "../attention/common/launch.cuh"
#include "../hopper/tensor_map.h"
#include "../shape/readable.h"
#include "hopper.cuh"

/// The gradients of states, and of u: from the last chunk to the first, as `states_kernel`.
///
///     du = P' g_out + F dS,    dS <- e dS + Q' g_out - W' du
namespace sash::cuda::delta {
namespace {

/// What a step reads: panels, the columns of g_out, e.
template <int kWidth>
struct Stage {
  static constexpr int kStages = 3;
  static constexpr int kTileBytes = RowTile<kWidth>::kBytes;
  static constexpr int kW = 0, kF = kTileBytes, kQ = 2 * kTileBytes, kP = 3 * kTileBytes;
  static constexpr int kG = kP + kChunk * kChunk * 2, kE = kG + kChunk * kChainColumns * 2;
  static constexpr int kBytes = kE + kWidth * 4;
};

template <int kWidth>
__global__ void __launch_bounds__(2 * kChainCount)
    dstates_kernel(const __grid_constant__ Call x, Results to) {
  using S = Stage<kWidth>;
  extern __shared__ __align__(128) unsigned char shared[];
  const Sizes& s = x.sizes;
  const StateColumns<kWidth> columns(s);
  const uint32_t base = shared_address(shared);
  StateSums<kWidth> sums(columns, s, to.g_state);
  const int chunks = s.chunks_of(columns.text);
  const int64_t first = x.index(s.place(columns.text, 0), columns.head);
  const auto index_of = [&](int step) {
    return first + int64_t{chunks - 1 - step} * s.value_heads;
  };
  const auto copy = [&](int step, int number, int thread) {
    const Place at = s.place(columns.text, chunks - 1 - step);
    const int64_t index = index_of(step);
    const uint32_t stage = base + static_cast<uint32_t>(number * S::kBytes);
    constexpr int tile = S::kTileBytes;
    copy_array<kChainCount, tile>(thread, stage + S::kW, x.arrays.w + index * (kChunk * kWidth));
    copy_array<kChainCount, tile>(thread, stage + S::kF, x.arrays.f + index * (kChunk * kWidth));
    copy_array<kChainCount, tile>(thread, stage + S::kQ, x.arrays.q + index * (kChunk * kWidth));
    copy_array<kChainCount, kChunk * kChunk * 2>(thread, stage + S::kP,
                                                 x.arrays.p + index * (kChunk * kChunk));
    copy_array<kChainCount, kWidth * 4>(thread, stage + S::kE,
                                        x.arrays.e + index * kFactors<kWidth>);
    const Rows<const Half> g = to.g.at(at.b, columns.head);
#pragma unroll
    for (int i = thread; i < kChunk * 4; i += kChainCount) {
      const int t = i / 4, m = columns.first + i % 4 * 8;
      copy_async(stage + S::kG + static_cast<uint32_t>(Panel<kChainColumns>::element(t, i % 4 * 8)),
                 g.data + (at.first + t) * g.row + m, t < at.count && m < g.width);
    }
  };
  run_chain<S::kStages>(chunks, copy, [&](int step, int number) {
    const int64_t index = index_of(step);
    const int stage = number * S::kBytes;
    const uint32_t memory = base + static_cast<uint32_t>(stage);
    typename StateSums<kWidth>::Operands left;
    sums.operands(left);
    sums.store_operands(x.arrays.dstates + index * (kWidth * kWidth), columns, left);

    const Panel<kWidth> w(memory + S::kW), f(memory + S::kF), q(memory + S::kQ);
    const Panel<kChunk> p(memory + S::kP);
    const Panel<kChainColumns> g(memory + S::kG);
    Sums16 du[4] = {};
    uint32_t g_left[4][4], right[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      g.left_down(g_left[k], k, warp() % 2);
      if ((k == 0 || k == 3) != (columns.half() == 0)) continue;
#pragma unroll
      for (int t = 0; t <= k; ++t) {
        p.right_down(right, k, t);
        multiply(du[t], g_left[k], right);
      }
    }
#pragma unroll
    for (int k = 0; k < columns.kBlocks; ++k) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        f.right(right, t, columns.feature_block() + k);
        multiply(du[t], left[k], right);
      }
    }
    add_other_half(du, shared + S::kStages * S::kBytes);
    Half* const du_of = x.arrays.du + index * (kWidth * kChunk);
    uint32_t minus[4][4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (t / 2 == columns.half()) store<Panel<kChunk>>(du_of, du[t], columns.block(), t);
      left_of(minus[t], du[t]);
      for (uint32_t& pair : minus[t]) pair ^= 0x80008000u;
    }
    sums.decay(reinterpret_cast<const float*>(shared + stage + S::kE));
    sums.add(g_left, [&](uint32_t(&b)[4], int t, int n) { q.right_down(b, t, n); });
    sums.add(minus, [&](uint32_t(&b)[4], int t, int n) { w.right_down(b, t, n); });
  });
  if (static_cast<int>(threadIdx.x) < kChainCount) sums.write(to.dinitial, columns, s);
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
      launch<dstates_kernel<kWidth>>(
          context, chain_blocks<kWidth>(x), 2 * kChainCount,
          Stage<kWidth>::kStages * Stage<kWidth>::kBytes + kExchangeBytes, call, to);
    }
    run_gradients<kWidth>(context, call, to);
  });
}

}  // namespace sash::cuda::delta
