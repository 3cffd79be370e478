#pragma once

#include "one_pass.cuh"

/// Turns: work tiles of keys add their parts of dQ to sums in global memory one after the other, in
/// the order of the keys. So the sums have the same bits in every run.
///
/// One warp waits for the turns of a block of threads and announces them to its groups; another
/// passes them on when the groups have added their parts. A tile waits only for tiles that were
/// taken before it (TileOrder::ordered), so there is always a tile that runs.
namespace sash::cuda::hopper {

/// The query block to which a work tile adds.
struct alignas(16) TurnAt {
  static constexpr int kFirst = 1, kLast = 2;

  int64_t block;  ///< in [B, H, query blocks]
  int m;          ///< the block in its head; < 0 if there is none, kNoBlock after the last turn
  int ends;       ///< whether the turn is the first or the last of the block
};

/// The turn of a work tile at a query block.
struct Turn {
  TurnAt at;
  int b, h, next;  ///< the number of the next turn of the block
};

/// The turns of the next steps, in shared memory.
template <int kBlocks>
struct TurnRing {
  static constexpr int kTurns = 2;
  using State = PipelineState<kTurns>;

  Turn turn[kTurns][kBlocks];
  Barrier announced[kTurns], added[kTurns], passed[kTurns];

  /// One thread calls this. `consumers` is the number of warps that add.
  __device__ void init(uint32_t consumers) {
    for (int i = 0; i < kTurns; ++i) {
      announced[i].init(kBlocks);
      added[i].init(consumers);
      passed[i].init(1);
    }
  }
};

/// x[lane()], or `other` on lanes past the end of x. All lanes read all elements; the asm keeps the
/// compiler from dropping these reads. They are for compute-sanitizer, which remembers only the
/// last reader of a word: the last lane is also the lane that releases the memory.
template <int n, class X>
__device__ X of_lane(const X (&x)[n], X other) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    uint32_t words[sizeof(X) / sizeof(uint32_t)];
    memcpy(words, &x[i], sizeof(X));
#pragma unroll
    for (uint32_t& word : words) asm volatile("" : "+r"(word));
    if (lane() == i) memcpy(&other, words, sizeof(X));
  }
  return other;
}

/// The loop of the warp that waits for turns.
template <class S, class X, class Shared>
__device__ void await_turns(const X& x, Shared& shared) {
  const auto& p = x.dims;
  auto& turns = shared.turns;
  typename Shared::StepState at;
  PipelineState<S::kWorkTiles> at_work;
  typename TurnRing<S::kBlocks>::State at_turn;
  const bool mine = lane() < S::kBlocks;
  const auto announce = [&](const Turn& turn) {
    if (mine) turns.turn[at_turn.stage()][lane()] = turn;
    turns.announced[at_turn.stage()].arrive(mine);
    at_turn.advance();
  };
  const auto wait_for_room = [&] { turns.passed[at_turn.stage()].wait(at_turn.parity() ^ 1); };
  for (;; at_work.advance()) {
    shared.work_full[at_work.stage()].wait(at_work.parity());
    const auto& work = shared.work[at_work.stage()];
    if (work.is_end()) break;
    const int b = work.b, tile = work.block_row[0] / S::kBlockRows;
    bool last;
    do {
      shared.a_ring.wait(at);
      const auto& step = shared.step[at.stage()];
      const int m = of_lane<S::kBlocks>(step.block, kNoBlock), h = step.h;
      last = step.last;
      shared.a_ring.release(at);
      at.advance();
      wait_for_room();
      Turn turn{};
      turn.at.m = -1;
      if (m != kNoBlock) {
        const int2 all = x.turns.tiles[p.first_row(b, h, p.map.query_blocks) + m];
        turn.b = b;
        turn.h = h;
        turn.at.m = m;
        const int place = tile - all.x;
        turn.next = place + 1;
        turn.at.ends =
            (place == 0 ? TurnAt::kFirst : 0) | (place == all.y - all.x ? TurnAt::kLast : 0);
        turn.at.block = p.block_of(b, h) + m;
        while (place > 0 && load_acquire(x.turns.done + turn.at.block) != place) {
        }
      }
      __syncwarp();
      announce(turn);
    } while (!last);
  }
  wait_for_room();
  Turn end{};
  end.at.m = kNoBlock;
  announce(end);
}

/// The loop of the warp that passes turns on.
template <class S, class Call, class Shared>
__device__ void pass_turns(const Call& x, Shared& shared) {
  auto& turns = shared.turns;
  typename TurnRing<S::kBlocks>::State at;
  for (;; at.advance()) {
    turns.announced[at.stage()].wait(at.parity());
    const Turn turn = of_lane<S::kBlocks>(turns.turn[at.stage()], turns.turn[at.stage()][0]);
    if (turn.at.m == kNoBlock) return;
    turns.added[at.stage()].wait(at.parity());
    if (lane() < S::kBlocks && turn.at.m >= 0 && !(turn.at.ends & TurnAt::kLast)) {
      store_release(x.turns.done + turn.at.block, turn.next);
    }
    turns.passed[at.stage()].arrive_as_one();
  }
}

/// Adds `sum`, this group's accumulators [64][64], to the sums of the turn's query block. Returns
/// true for the last turn of the block; then `sum` is the total.
__device__ inline bool take_turn(const TurnMemory& memory, const TurnAt& turn, float (&sum)[32]) {
  const bool first = turn.ends & TurnAt::kFirst, last = turn.ends & TurnAt::kLast;
  if (first && last) return true;
  float4* const to = memory.sums + turn.block * (8 * kGroup) + threadIdx.x % kGroup;
  if (first) {
    store_sums(memory.sums + turn.block * (8 * kGroup), sum);
  } else if (!last) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile(
          "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * kGroup),
          "f"(sum[4 * i]), "f"(sum[4 * i + 1]), "f"(sum[4 * i + 2]), "f"(sum[4 * i + 3])
          : "memory");
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 before = __ldcg(to + i * kGroup);
      sum[4 * i] += before.x;
      sum[4 * i + 1] += before.y;
      sum[4 * i + 2] += before.z;
      sum[4 * i + 3] += before.w;
    }
  }
  return last;
}

}  // namespace sash::cuda::hopper
