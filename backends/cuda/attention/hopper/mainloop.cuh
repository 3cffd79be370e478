#pragma once

#include <type_traits>

#include "../../hopper/pipeline.cuh"
#include "mask.cuh"

/// What the sm_90 kernels share besides products: shared memory, the loops of the producer warps,
/// the loop of the consumers over work tiles, and the roles of warps.
namespace sash::cuda::hopper {

struct NoTiles {};

/// The shared memory of a block of threads. Resident tiles stay during a work tile. Pairs of tiles
/// are streamed: ring `a` has keys or queries, ring `b` values or cotangents.
template <class S>
struct SharedStorage {
  static constexpr int kSteps = S::kListed * S::kStages;
  using StepState = PipelineState<kSteps>;

  typename S::Resident resident[S::kResident][S::kOperands][S::kBlockRows];
  typename S::Streamed a[S::kStages], b[S::kStagesOfB];
  /// What dropout keeps of the steps in ring `a`.
  [[no_unique_address]] std::conditional_t<S::kCopiesKept,
                                           KeptTile[S::kStages][S::kBlocks][S::kBlockRows], NoTiles>
      kept;
  SharedWorkTile<S::kBlockRows> work[S::kWorkTiles];
  Step<S::kBlockRows, S::kBlocks> step[kSteps];
  Barrier work_full[S::kWorkTiles], step_full[kSteps], step_empty[kSteps];
  Ring<typename S::Resident, S::kResident, S::kOperands * S::kBlockRows> resident_ring;
  Ring<typename S::Streamed, S::kStages> a_ring;
  Ring<typename S::Streamed, S::kStagesOfB> b_ring;

  /// All threads of the block call this.
  __device__ void init() {
    constexpr uint32_t consumers = 4 * S::kGroups;
    if (threadIdx.x == 0) {
      for (Barrier& full : work_full) full.init(S::kBlockRows);
      for (Barrier& full : step_full) full.init(S::kBlockRows);
      for (Barrier& empty : step_empty) empty.init(1);
      resident_ring.init(consumers);
      a_ring.init(consumers + S::kListeners);
      b_ring.init(consumers);
      fence_barrier_init();
    }
    __syncthreads();
  }
};

/// For `list_steps`: a work tile needs nothing before its steps.
__device__ inline void no_work(const WorkTile&) {}

/// The loop of the warp that lists the work. It takes work tiles from the scheduler, publishes
/// them, calls begin(work), loads the `resident` tiles, and publishes a step for each block that a
/// row of the work tile lists. If `by_query`, these are blocks of keys. Otherwise they are blocks
/// of queries, for each query head of the work tile in turn. The warp runs ahead of the copies, so
/// that they never wait for lists.
template <class S, bool by_query, class X, class Shared, class Begin, class... Resident>
__device__ void list_steps(const X& x, Shared& shared, const Begin& begin,
                           const Resident&... resident) {
  const auto& p = x.dims;
  const int heads = by_query      ? 1
                    : S::kInParts ? x.order.query_heads(p.heads)
                                  : p.heads / p.key_heads;
  PipelineState<S::kResident> at_resident;
  PipelineState<S::kWorkTiles> at_work;
  typename Shared::StepState at;
  // A tile that has been taken must be published.
  TileScheduler scheduler(x.order);
  for (int tile; (tile = scheduler.next()) >= 0; at_work.advance()) {
    const WorkTile work(x.order, p, S::kBlockRows, tile);
    work.publish(shared.work[at_work.stage()], shared.work_full[at_work.stage()]);
    begin(work);
    constexpr bool in_parts = S::kInParts && !by_query;
    const int splits = in_parts ? x.order.splits : 1;
    const int first_head = work.h / splits * heads, end_head = first_head + heads;
    const int resident_head = in_parts ? p.key_head_of(first_head) : work.h;
    const int stage = at_resident.stage();
    Barrier& full = shared.resident_ring.full[stage];
    shared.resident_ring.acquire(at_resident);
    if (elect_one()) shared.resident_ring.commit(at_resident);
    for (int i = 0; i < S::kBlockRows; ++i) {
      const int row = __shfl_sync(~0u, work.block_row, i) * kBlock;
      int operand = 0;
      if (!elect_one()) continue;
      (copy_rows(shared.resident[stage][operand++][i], 0, resident, row, resident_head, work.b,
                 full),
       ...);
    }
    at_resident.advance();
    for (int h = first_head; h < end_head; ++h) {
      BlockIterator<typename S::Element, S::kBlockRows, by_query, S::kBlocks, S::kTakesBounds,
                    S::kBackwards>
          blocks(p, work, h, work.h % splits, splits);
      bool last;
      do {
        int block[S::kBlocks], tile_of_lane[S::kBlocks];
#pragma unroll
        for (int part = 0; part < S::kBlocks; ++part) {
          block[part] = blocks.next();
          tile_of_lane[part] = blocks.tile();
        }
        last = !blocks.more();
        shared.step_empty[at.stage()].wait(at.parity() ^ 1);
        shared.step[at.stage()].publish(block, tile_of_lane, work.b, h, last && h + 1 == end_head,
                                        shared.step_full[at.stage()]);
        at.advance();
      } while (!last);
    }
  }
  publish_end(shared.work[at_work.stage()], shared.work_full[at_work.stage()]);
  shared.step_empty[at.stage()].wait(at.parity() ^ 1);
  shared.step[at.stage()].publish_end(shared.step_full[at.stage()]);
}

/// Copies the bit tiles of a step of head (b, h) for each of the work tile's rows, or without
/// memory for them, fetches them into the L2 cache. By one thread.
template <class S, bool by_query, class X>
__device__ void copy_kept(const X& x, KeptTile (*kept)[S::kBlockRows], int b, int h,
                          const int (&blocks)[S::kBlocks], const int (&rows)[S::kBlockRows],
                          Barrier& full) {
  const int64_t first = x.dims.block_of(b, h);
#pragma unroll
  for (int part = 0; part < S::kBlocks; ++part) {
    const int block = blocks[part] == kNoBlock ? 0 : blocks[part];
#pragma unroll
    for (int i = 0; i < S::kBlockRows; ++i) {
      const int query = by_query ? rows[i] : block, key = by_query ? block : rows[i];
      const int tile = x.dims.kept_tile(first + query, key);
      if constexpr (S::kCopiesKept) {
        copy_row(&kept[part][i], x.kept, tile, full);
      } else {
        prefetch_l2(x.kept + tile, sizeof(KeptTile));
      }
    }
  }
}

/// The loop of the warp that copies the tiles of listed steps. One thread calls copy_a(stage, part,
/// block, b, h, full) and copy_b to copy part `part` of a stage of their ring. copy_a also copies
/// `extra` bytes in addition to the tiles of a stage. h is a key head if `by_query`, else a query
/// head. With dropout, the step's bit tiles are copied with `a`. `ahead`: when the tiles of `a`
/// have arrived, the list entry of the next step of the work tile is published too
/// (Consumer::read_next).
template <class S, bool by_query, bool ahead = false, class X, class Shared, class CopyA,
          class CopyB>
__device__ void copy_steps(const X& x, Shared& shared, uint32_t extra, CopyA copy_a, CopyB copy_b) {
  typename Shared::StepState at, done;
  PipelineState<S::kWorkTiles> at_work;
  int steps = 0;
  // When both rings have a free stage, no warp reads the list entry of kStages steps ago any
  // longer.
  const auto release_step = [&] {
    if (steps++ < S::kStages) return;
    shared.step_empty[done.stage()].arrive_as_one();
    done.advance();
  };
  for (;; at.advance()) {
    const auto of_a = at.template in<S::kStages>();
    const auto of_b = at.template in<S::kStagesOfB>();
    if constexpr (S::kListed == 1) {
      shared.a_ring.acquire(of_a);
      shared.b_ring.acquire(of_b);
      release_step();
    }
    shared.step_full[at.stage()].wait(at.parity());
    const auto& step = shared.step[at.stage()];
    if (step.is_end()) return;
    const int b = step.b, h = step.h, head = by_query ? x.dims.key_head_of(h) : h;
    int block[S::kBlocks];
#pragma unroll
    for (int part = 0; part < S::kBlocks; ++part) block[part] = step.block[part];
    if (ahead && !step.last) {
      auto next = at;
      next.advance();
      shared.step_full[next.stage()].wait(next.parity());
    }
    shared.a_ring.acquire(of_a);
    const int slot = at_work.stage();
    if constexpr (S::kDropout) shared.work_full[slot].wait(at_work.parity());
    if (elect_one()) {
      // Read before the commit: after it, the consumers may release the work tile.
      int rows[S::kBlockRows];
#pragma unroll
      for (int i = 0; S::kDropout && i < S::kBlockRows; ++i) {
        rows[i] = shared.work[slot].block_row[i];
      }
      Barrier& full = shared.a_ring.commit(
          of_a, extra + S::kCopiesKept * S::kBlocks * S::kBlockRows * uint32_t{sizeof(KeptTile)});
#pragma unroll
      for (int part = 0; part < S::kBlocks; ++part) {
        copy_a(of_a.stage(), part, block[part], b, head, full);
      }
      if constexpr (S::kDropout) {
        KeptTile(*kept)[S::kBlockRows] = nullptr;
        if constexpr (S::kCopiesKept) kept = shared.kept[of_a.stage()];
        copy_kept<S, by_query>(x, kept, b, h, block, rows, full);
      }
    }
    if (S::kDropout && step.last) at_work.advance();
    shared.b_ring.acquire(of_b);
    if (elect_one()) {
      Barrier& full = shared.b_ring.commit(of_b);
#pragma unroll
      for (int part = 0; part < S::kBlocks; ++part) {
        copy_b(of_b.stage(), part, block[part], b, head, full);
      }
    }
    if constexpr (S::kListed > 1) release_step();
  }
}

/// A consumer group: the loop over its work tiles. `Derived` has three functions. compute(work)
/// waits for the resident tiles and processes all steps. reduce(buffer) adds up the accumulators of
/// groups that share a block row; the buffer is a resident stage. store(b, h, first, rows) is the
/// epilogue: it writes `rows` rows of head (b, h) from row `first` on.
template <class Derived, class S, class X, class Shared, bool by_query>
class Consumer {
 public:
  __device__ Consumer(const X& x, Shared& shared, int row) : x_(x), shared_(shared), row_(row) {}

  __device__ void run() {
    auto& self = static_cast<Derived&>(*this);
    while (true) {
      shared_.work_full[at_work_.stage()].wait(at_work_.parity());
      if (work().is_end()) return;
      self.compute(work());
      const auto& p = x_.dims;
      const int b = work().b, h = work().h, row = work().block_row[row_] * kBlock;
      const bool shares = work().shared;
      if (shares) self.reduce(reinterpret_cast<float*>(&shared_.resident[at_resident_.stage()]));
      shared_.resident_ring.release(at_resident_);
      at_resident_.advance();
      at_work_.advance();
      self.store(b, h, row, shares && row_ > 0 ? 0 : (by_query ? p.queries : p.keys) - row);
    }
  }

 protected:
  __device__ const SharedWorkTile<S::kBlockRows>& work() const {
    return shared_.work[at_work_.stage()];
  }
  /// The list entry of the current step.
  __device__ const Step<S::kBlockRows, S::kBlocks>& step() const {
    return shared_.step[at_.stage()];
  }
  /// The list entry of a step, for this group.
  struct Listed {
    int tile[S::kBlocks], last;
  };
  __device__ Listed read(const typename Shared::StepState& at) const {
    const auto& listed = shared_.step[at.stage()];
    Listed found;
    found.last = listed.last;
#pragma unroll
    for (int part = 0; part < S::kBlocks; ++part) found.tile[part] = listed.tile[row_][part];
    return found;
  }
  /// Reads the list entry of the next step, which requires `ahead` of `copy_steps`. If `last`,
  /// there is no next step in the work tile, and the result is not used.
  __device__ Listed read_next(bool last) const {
    auto next = at_;
    next.advance();
    return read(last ? at_ : next);
  }
  /// Releases the stages of a hidden step.
  __device__ void release_step() {
    shared_.b_ring.wait(at_);
    shared_.a_ring.release(at_);
    shared_.b_ring.release(at_);
  }
  /// The stage of ring `a`.
  static __device__ int stage_of(const typename Shared::StepState& at) {
    return at.template in<S::kStages>().stage();
  }

  const X& x_;
  Shared& shared_;
  const int row_;  ///< the number of this group's block row in the work tile
  PipelineState<S::kWorkTiles> at_work_;
  PipelineState<S::kResident> at_resident_;
  typename Shared::StepState at_;
};

/// Warp specialization: runs the consumer groups and up to four warps of the producer group, after
/// it has distributed the registers between them.
template <class S, class Shared, class Consume, class... Produce>
__device__ void specialize_warps(Shared& shared, Consume consume, Produce... produce) {
  static_assert(sizeof...(produce) <= 4);
  shared.init();
  if (group() < S::kGroups) {
    warpgroup_reg_alloc<S::kConsumerRegisters>();
    consume();
  } else {
    warpgroup_reg_dealloc<S::kProducerRegisters>();
    int number = 4 * S::kGroups;
    (
        [&] {
          if (warp() == number++) produce();
        }(),
        ...);
  }
}

}  // namespace sash::cuda::hopper
