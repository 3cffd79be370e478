#pragma once

#include "attention_hopper_mask.cuh"
#include "hopper_pipeline.cuh"

/// What the three sm_90 kernels share around their products: shared memory, the producer warps, the
/// consumers' loop over work tiles, and the roles of warps.
namespace sash::cuda::hopper {

/// The shared memory of a block of threads. Resident tiles stay for a work tile; pairs of tiles
/// stream past them: `a` has keys or queries, `b` values or cotangents.
template <class S>
struct SharedStorage {
  typename S::Resident resident[S::kResident][S::kOperands][S::kBlockRows];
  typename S::Streamed a[S::kStages], b[S::kStagesOfB];
  SharedWorkTile<S::kBlockRows> work[S::kWorkTiles];
  Step<S::kBlockRows, S::kBlocks> step[S::kStages];
  Barrier work_full[S::kWorkTiles];
  Ring<typename S::Resident, S::kResident, S::kOperands * S::kBlockRows> resident_ring;
  Ring<typename S::Streamed, S::kStages> a_ring;
  Ring<typename S::Streamed, S::kStagesOfB> b_ring;

  /// By all threads of the block.
  __device__ void init() {
    constexpr uint32_t consumers = 4 * S::kGroups;
    if (threadIdx.x == 0) {
      for (Barrier& full : work_full) full.init(S::kBlockRows);
      resident_ring.init(0, consumers);
      a_ring.init(S::kBlockRows, consumers + S::kListeners);  // lanes that publish the step
      b_ring.init(0, consumers);
      fence_barrier_init();
    }
    __syncthreads();
  }
};

/// The loop of a producer warp. For each block that a row of a work tile lists, copy(stage, part,
/// block, b, h, full), by one thread, copies part `part` of a stage of `ring`, and `more` bytes
/// besides the tiles; h is a key head if `by_query`, else each query head of the work tile's key
/// head in turn. The warp that is given `resident` tensors leads: it takes work tiles from the
/// scheduler, publishes them and each step, calls begin(work), and loads the resident tiles. The
/// other warp follows what it publishes.
template <class S, bool by_query, class X, class Shared, class R, class Begin, class Copy,
          class... Resident>
__device__ void produce(const X& x, Shared& shared, R& ring, uint32_t more, Begin begin, Copy copy,
                        const Resident&... resident) {
  constexpr bool leads = sizeof...(Resident) > 0;
  const auto& p = x.dims;
  const int heads = by_query ? 1 : p.heads / p.key_heads;
  PipelineState<S::kResident> at_resident;
  typename R::State at;
  PipelineState<S::kWorkTiles> at_work;
  // A tile that is taken has to be published.
  [[maybe_unused]] auto scheduler = [&] {
    if constexpr (leads) {
      return TileScheduler(x.schedule);
    } else {
      return 0;
    }
  }();
  for (;; at_work.advance()) {
    SharedWorkTile<S::kBlockRows>& published = shared.work[at_work.stage()];
    Barrier& work_full = shared.work_full[at_work.stage()];
    WorkTile work;
    if constexpr (leads) {
      const int tile = scheduler.next();
      if (tile < 0) break;
      work = WorkTile(x.schedule, p, S::kBlockRows, tile);
      work.publish(published, work_full);
      begin(work);
    } else {
      work_full.wait(at_work.parity());
      if (published.is_end()) break;
      work = WorkTile(published);
    }
    const auto load_resident = [&] {
      if constexpr (leads) {
        const int stage = at_resident.stage();
        Barrier& full = shared.resident_ring.full[stage];
        shared.resident_ring.acquire(at_resident);
        if (elect_one()) shared.resident_ring.commit(at_resident);
        for (int i = 0; i < S::kBlockRows; ++i) {
          const int row = __shfl_sync(~0u, work.block_row, i) * kBlock;
          int operand = 0;
          if (!elect_one()) continue;
          (copy_rows(shared.resident[stage][operand++][i], 0, resident, row, work.h, work.b, full),
           ...);
        }
        at_resident.advance();
      }
    };
    if (!by_query) load_resident();
    const int end_head = (work.h + 1) * heads;
    for (int h = work.h * heads; h < end_head; ++h) {
      BlockIterator<typename S::Element, S::kBlockRows, by_query, S::kBlocks> blocks(p, work, h);
      const int head = by_query ? p.key_head_of(h) : h;
      if (by_query) load_resident();
      bool last;
      do {
        int block[S::kBlocks], tile[S::kBlocks];
#pragma unroll
        for (int part = 0; part < S::kBlocks; ++part) {
          block[part] = blocks.next();
          tile[part] = blocks.tile();
        }
        last = !blocks.more();
        ring.acquire(at);
        if (elect_one()) {
          Barrier& full = ring.commit(at, more);
          for (int part = 0; part < S::kBlocks; ++part) {
            copy(at.stage(), part, block[part], work.b, head, full);
          }
        }
        if constexpr (leads) {
          shared.step[at.stage()].publish(block, tile, h, last && h + 1 == end_head,
                                          ring.full[at.stage()]);
        }
        at.advance();
      } while (!last);
    }
  }
  if constexpr (leads) {
    publish_end(shared.work[at_work.stage()], shared.work_full[at_work.stage()]);
  }
}

/// A consumer group: the loop over its work tiles. `Derived` has compute(work), which waits for the
/// resident tiles and takes all steps; reduce(buffer), which adds up the accumulators of groups
/// that share a block row, in a resident stage; and store(b, h, first, rows), the epilogue: `rows`
/// rows of head (b, h) from row `first` on.
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
  /// What the producer published of the step at hand.
  __device__ const Step<S::kBlockRows, S::kBlocks>& step() const {
    return shared_.step[at_.stage()];
  }

  const X& x_;
  Shared& shared_;
  const int row_;  ///< this group's among the work tile's block rows
  PipelineState<S::kWorkTiles> at_work_;
  PipelineState<S::kResident> at_resident_;
  PipelineState<S::kStages> at_;
};

/// Warp specialization: the consumer groups and up to four warps of the producer group, with
/// registers to match.
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
