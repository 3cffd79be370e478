#pragma once

#include "one_pass.cuh"

/// Parts of dQ that groups hand over in shared memory. One warp adds those of a group to their sums
/// in turn, by bulk copies, so that the group waits neither for its turn nor for memory.
namespace sash::cuda::hopper {

/// A part [64][64], as the threads of a group hold it.
struct alignas(128) PartOfQueries {
  float4 chunk[8 * kGroup];
};

/// Named barriers of a group and its adder: `full` once the group has written a buffer, `empty`
/// once the adder has read it.
__device__ inline int full_barrier(int buffer, int group) { return 5 + 4 * buffer + group; }
__device__ inline int empty_barrier(int buffer, int group) { return 7 + 4 * buffer + group; }
inline constexpr int kHandover = kGroup + 32;  ///< threads at each

/// The warp that adds the parts of group `number`.
template <class S, class Call, class Shared>
class Adder {
 public:
  __device__ Adder(const Call& x, Shared& shared, int number)
      : x_(x), shared_(shared), group_(number) {}

  __device__ void run() {
    for (int i = 0; i < S::kStaged; ++i) barrier_arrive(empty_barrier(i, group_), kHandover);
    int buffer = 0;
    for (bool found = find(); found;) {
      while (!is_due_) ask();
      __syncwarp();
      fence_proxy_async_global();
      const Turn turn = turn_;
      const bool last = last_;
      barrier_sync(full_barrier(buffer, group_), kHandover);
      if (lane() == 0) add(turn, buffer);
      // The next step of a work tile follows soon, another work tile perhaps not.
      if (!last) find();
      if (lane() == 0) bulk_wait_read();
      __syncwarp();
      barrier_arrive(empty_barrier(buffer, group_), kHandover);
      ask();  // while the part is added
      if (lane() == 0) pass_on(turn);
      __syncwarp();
      buffer = (buffer + 1) % S::kStaged;
      if (last) found = find();
    }
  }

 private:
  /// The turn of a work tile at a query block.
  struct Turn {
    int* done;   ///< how many work tiles have had theirs; null: the step has no block
    float4* to;  ///< the sums
    int place;
  };

  /// Finds the turn of the next step. False: there are no more steps.
  __device__ bool find() {
    const auto& p = x_.dims;
    if (last_) {
      shared_.work_full[at_work_.stage()].wait(at_work_.parity());
      const auto& work = shared_.work[at_work_.stage()];
      if (work.is_end()) return false;
      b_ = work.b;
      tile_ = work.block_row[0] / S::kBlockRows;
      at_work_.advance();
    }
    shared_.a_ring.wait(at_);
    const auto& step = shared_.step[at_.stage()];
    const int m = step.block[S::kParts == 1 ? group_ : 0], h = step.h;
    last_ = __any_sync(~0u, step.last);
    shared_.a_ring.release(at_);
    at_.advance();
    turn_.done = nullptr;
    is_due_ = true;
    if (m == kNoBlock) return true;
    const int64_t at = (p.block_of(b_, h) + m) * S::kParts + (S::kParts == 1 ? 0 : group_);
    const int2 tiles = x_.turns.tiles[p.first_row(b_, h, p.map.query_blocks) + m];
    turn_ = {.done = x_.turns.done + at,
             .to = x_.turns.sums + at * (8 * kGroup),
             .place = tile_ - tiles.x};
    is_due_ = turn_.place == 0;
    return true;
  }

  /// Asks whether it is the turn.
  __device__ void ask() { is_due_ = is_due_ || load_acquire(turn_.done) == turn_.place; }

  /// The first part of a block is stored, others are added.
  __device__ void add(const Turn& turn, int buffer) {
    if (!turn.done) return;
    const PartOfQueries& part = shared_.staged[buffer][group_];
    if (turn.place == 0) {
      bulk_store(turn.to, &part, sizeof(part));
    } else {
      bulk_add(turn.to, &part, sizeof(part));
    }
    bulk_commit();
  }

  /// Once the part is in the sums.
  __device__ void pass_on(const Turn& turn) {
    bulk_wait();
    if (turn.done) store_release(turn.done, turn.place + 1);
  }

  const Call& x_;
  Shared& shared_;
  const int group_;
  typename Shared::StepState at_;
  PipelineState<S::kWorkTiles> at_work_;
  Turn turn_;
  int b_, tile_;
  bool is_due_ = false;
  bool last_ = true;  ///< whether the step that was found last is its work tile's last
};

}  // namespace sash::cuda::hopper
