#pragma once

#include "one_pass.cuh"

/// Parts of dQ that groups pass on in shared memory. For each group, one warp adds the parts to
/// their sums by bulk copies, when it is their turn. So the group waits neither for its turn nor
/// for memory.
namespace sash::cuda::hopper {

/// A part [64][64], in the order of the accumulators of a group.
struct alignas(128) PartOfQueries {
  float4 chunk[8 * kGroup];
};

/// Named barriers of a group and its adder. The group arrives at `full` when it has written a
/// buffer, the adder arrives at `empty` when it has read the buffer.
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
      // The next step of a work tile follows soon, but the next work tile may not.
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
    int* done;   ///< how many work tiles have had their turn; null if the step has no block
    float4* to;  ///< the sums
    int place;
  };

  /// Finds the turn of the next step. Returns false after the last step.
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

  /// Reads from memory whether it is the turn.
  __device__ void ask() { is_due_ = is_due_ || load_acquire(turn_.done) == turn_.place; }

  /// Stores the first part of a query block, and adds all later parts.
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

  /// Waits until the part is in the sums, then passes the turn on.
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
  bool last_ = true;  ///< whether the latest step that was found is the last step of its work tile
};

}  // namespace sash::cuda::hopper
