#pragma once

#include "hopper_chain.cuh"

/// The shared memory of `gradient_kernel` of Hopper, and the warp that fills it.
namespace sash::cuda::delta {

struct GradientCall : Call {
  GradientCall(const Call& call, const Results& results) : Call(call), to(results) {}

  Results to;
  CUtensorMap before, dstates[2], du, factors, q_map, k_map, g_map;  // before: `states` and w
};

template <int kWidth>
struct alignas(1024) GradientRows {
  static constexpr int kTile = kChunk * kWidth * 2;
  unsigned char g[kTile], w[kTile], du[kTile];
  float factors[Factors<kWidth>::kCount];
};

template <int kWidth>
struct GradientMemory {
  static constexpr int kTile = kChunk * kWidth * 2, kSquare = kChunk * kChunk * 2;
  static constexpr int kGroups = kHalves<kWidth> + 2, kThreads = (kGroups + 1) * kChainCount;
  GradientRows<kWidth> rows[2];
  unsigned char state[kWidth * kWidth * 2], dstate[kWidth * kWidth * 2];
  unsigned char k[kTile], q[kTile], dp[kSquare], da[kSquare];
  hopper::Barrier rows_full[2], rows_empty[2], states_full, states_empty, keys_full, keys_empty,
      scores_full, scores_empty, sums_full;
  float tokens[2][kGroups - 1][kChunk], dg[kChunk];  ///< parts of dg of each token, and their sums
  float of_states[2][3], of_keys[2][4 * kHalves<kWidth>];  ///< parts of dg of all tokens

  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i) rows_full[i].init(kWarp), rows_empty[i].init(4 * kGroups);
      states_full.init(kWarp + 4), states_empty.init(4 * (kGroups - 1) + 3);
      keys_full.init(kWarp), keys_empty.init(4 * kGroups);
      scores_full.init(4), scores_empty.init(4 * (kGroups - 1));
      sums_full.init((4 * (kGroups - 1) + 3) * kWarp);
      hopper::fence_barrier_init();
    }
    __syncthreads();
  }
  /// Waits for all parts of dg of chunk i. The sum of the parts of chunk i - 1 is formed by then,
  /// so the memory of these parts is free.
  __device__ void wait_for_sums(int i) {
    if (i >= 0) sums_full.wait(i % 2);
  }
};

/// Calls f(place, head, index, i) for the chunks of a block of threads, of which it is number i.
template <class F>
__device__ void each_chunk(const GradientCall& x, const F& f) {
  const Sizes& s = x.sizes;
  const int log2 = x.arrays.run_log2, runs = static_cast<int>(x.runs()) * s.value_heads;
  int i = 0;
#pragma unroll 1
  for (int at = 0;; ++at) {
    const int run = static_cast<int>(blockIdx.x + (at >> log2) * gridDim.x);
    if (run >= runs) return;
    const int head = run % s.value_heads;
    const int slot = (run / s.value_heads << log2) + (at & ((1 << log2) - 1));
    if (slot >= s.slots) continue;
    const Place place = s.place_of_slot(slot);
    if (place.count > 0) f(place, head, place.slot * s.value_heads + head, i++);
  }
}

/// Copies what other warps read. One warp calls this.
template <int kWidth>
__device__ void copy_chunks(const GradientCall& x, GradientMemory<kWidth>& shared) {
  using Copies = StageCopies<kWidth>;
  const Sizes& s = x.sizes;
  each_chunk(x, [&](const Place& place, int head, int64_t index, int i) {
    const int key_head = head / (s.value_heads / s.heads);
    auto& rows = shared.rows[i % 2];
    shared.rows_empty[i % 2].wait((i / 2 + 1) % 2);
    const Copies to_rows(s, place, index, shared.rows_full[i % 2]);
    to_rows.rows(x.to.g.at(place.b, head), rows.g);
    if (to_rows.begin(2 * Copies::kTile + static_cast<int>(sizeof(rows.factors)), 1)) {
      to_rows.tile(rows.g, x.g_map, head);
      to_rows.panel(rows.w, x.before, x.arrays.states, x.arrays.w);
      to_rows.tile_at(rows.du, x.du, x.row_index(place, head));
      to_rows.factors(rows.factors, x.factors);
    }
    __syncwarp();
    shared.states_empty.wait((i + 1) % 2);
    const Copies to_states(s, place, index, shared.states_full);
    const bool kept = x.keeps(place);
    if (to_states.begin((kept ? 2 : 1) * static_cast<int>(sizeof(shared.state)), 0)) {
      if (kept) {
        to_states.panel(shared.state, x.before, x.arrays.states, x.arrays.states,
                        x.kept_index(place, head));
      }
      for (int half = 0; half < kHalves<kWidth>; ++half) {
        to_states.tile_at(shared.dstate + half * Copies::kTile, x.dstates[half],
                          x.row_index(place, head));
      }
    }
    __syncwarp();
    shared.keys_empty.wait((i + 1) % 2);
    const Copies to_keys(s, place, index, shared.keys_full);
    to_keys.rows(x.k.at(place.b, key_head), shared.k);
    to_keys.rows(x.q.at(place.b, key_head), shared.q);
    if (to_keys.begin(0, 2)) {
      to_keys.tile(shared.k, x.k_map, key_head);
      to_keys.tile(shared.q, x.q_map, key_head);
    }
    __syncwarp();
  });
}

}  // namespace sash::cuda::delta
