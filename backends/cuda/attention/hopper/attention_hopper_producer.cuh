#pragma once

#include "attention_hopper_walk.cuh"
#include "hopper_pipeline.cuh"

/// What the three sm_90 kernels share around their products: shared memory, the producer warps, and
/// the roles of warps.
namespace sash::cuda::hopper {

/// The shared memory of a block of threads. Resident tiles stay while a row of the map is walked;
/// pairs of tiles stream past them: `a` has keys or queries, `b` values or cotangents.
template <class S>
struct SharedStorage {
  typename S::Resident resident[S::kResident][S::kOperands][S::kLines];
  typename S::Streamed a[S::kStages], b[S::kStagesOfB];
  Work<S::kLines> work[S::kWorks];
  Step<S::kLines, S::kBlocks> step[S::kStages];
  Barrier work_full[S::kWorks];
  Ring<typename S::Resident, S::kResident, S::kOperands * S::kLines> resident_ring;
  Ring<typename S::Streamed, S::kStages> a_ring;
  Ring<typename S::Streamed, S::kStagesOfB> b_ring;

  /// By all threads of the block.
  __device__ void init() {
    constexpr uint32_t consumers = 4 * S::kGroups;
    if (threadIdx.x == 0) {
      for (Barrier& full : work_full) full.init(S::kLines);
      resident_ring.init(0, consumers);
      a_ring.init(S::kLines, consumers);  // lanes that note the step
      b_ring.init(0, consumers);
      publish_barriers();
    }
    __syncthreads();
  }
};

/// The loop of a producer warp. It fills `ring` with each block that a row of its work lists, of
/// all query heads that share a key head unless `by_query`: copy(stage, part, block, b, h, full),
/// by one thread, starts the copies of part `part` of a stage, `more` bytes besides the tiles. The
/// warp with `resident` tensors leads: it takes work from the schedule, calls begin(work),
/// announces it, and loads the resident tiles. The other follows.
template <class S, bool by_query, class X, class Shared, class R, class Begin, class Copy,
          class... Resident>
__device__ void produce(const X& x, Shared& shared, R& ring, uint32_t more, Begin begin, Copy copy,
                        const Resident&... resident) {
  constexpr bool leads = sizeof...(Resident) > 0;
  const auto& p = x.problem;
  const int heads = by_query ? 1 : p.heads / p.groups;
  PipelineState<S::kResident> at_resident;
  typename R::State at;
  Items items(x.schedule);
  for (PipelineState<S::kWorks> at_work;; at_work.advance()) {
    Work<S::kLines>& noted = shared.work[at_work.stage()];
    Barrier& work_full = shared.work_full[at_work.stage()];
    WorkAhead work;
    if constexpr (leads) {
      const int item = items.next();
      if (item < 0) return end_work(noted, work_full);
      work = WorkAhead(x.schedule, p, S::kLines, item);
      work.note(noted, work_full);
      begin(work);
    } else {
      work_full.wait(at_work.parity());
      if (noted.ended()) return;
      work = WorkAhead(noted);
    }
    const auto load_resident = [&] {
      if constexpr (leads) {
        const int stage = at_resident.stage();
        shared.resident_ring.acquire(at_resident);
        if (is_chosen()) shared.resident_ring.commit(at_resident);
        for (int i = 0; i < S::kLines; ++i) {
          const int row = __shfl_sync(~0u, work.line, i) * kBlock;
          if (!is_chosen()) continue;
          int operand = 0;
          (copy_rows(shared.resident[stage][operand++][i], 0, resident, row, work.h, work.b,
                     shared.resident_ring.full[stage]),
           ...);
        }
        at_resident.advance();
      }
    };
    if (!by_query) load_resident();
    const int end_head = (work.h + 1) * heads;
    for (int h = work.h * heads; h < end_head; ++h) {
      Walk<typename S::Element, S::kLines, by_query, S::kBlocks> walk(p, work, h);
      const int head = by_query ? p.group_of(h) : h;  // of what streams
      if (by_query) load_resident();
      bool last;
      do {
        int block[S::kBlocks], tile[S::kBlocks];
#pragma unroll
        for (int part = 0; part < S::kBlocks; ++part) {
          block[part] = walk.next();
          tile[part] = walk.tile();
        }
        last = !walk.more();
        ring.acquire(at);
        if (is_chosen()) {
          Barrier& full = ring.commit(at, more);
          for (int part = 0; part < S::kBlocks; ++part) {
            copy(at.stage(), part, block[part], work.b, head, full);
          }
        }
        if constexpr (leads) {
          shared.step[at.stage()].note(block, tile, h, last && h + 1 == end_head,
                                       ring.full[at.stage()]);
        }
        at.advance();
      } while (!last);
    }
  }
}

/// A group that multiplies, on what the producers bring: the loop over its work. `Derived` has
/// compute(work), which waits for the resident tiles and takes all steps of the work; reduce(room),
/// which adds up the groups' results where they share a row, in memory of that size; and
/// store(first, rows), which writes `rows` rows from row `first` on.
template <class Derived, class S, class X, class Shared, bool by_query>
class Consumer {
 public:
  __device__ Consumer(const X& x, Shared& shared, int line) : x_(x), shared_(shared), line_(line) {}

  __device__ void run() {
    auto& self = static_cast<Derived&>(*this);
    while (true) {
      shared_.work_full[at_work_.stage()].wait(at_work_.parity());
      if (work().ended()) return;
      self.compute(work());
      const auto& p = x_.problem;
      const int row = work().line[line_] * kBlock;
      const int64_t first = by_query
                                ? p.row_of(work().b, work().h)
                                : (static_cast<int64_t>(work().b) * p.groups + work().h) * p.keys;
      const bool shares = work().shared;
      if (shares) self.reduce(reinterpret_cast<float*>(&shared_.resident[at_resident_.stage()]));
      shared_.resident_ring.release(at_resident_);
      at_resident_.advance();
      at_work_.advance();
      self.store(first + row, shares && line_ > 0 ? 0 : (by_query ? p.queries : p.keys) - row);
    }
  }

 protected:
  __device__ const Work<S::kLines>& work() const { return shared_.work[at_work_.stage()]; }
  /// What the producer noted of the step at hand.
  __device__ const Step<S::kLines, S::kBlocks>& step() const { return shared_.step[at_.stage()]; }

  const X& x_;
  Shared& shared_;
  const int line_;
  PipelineState<S::kWorks> at_work_;
  PipelineState<S::kResident> at_resident_;
  PipelineState<S::kStages> at_;
};

/// Gives the warps of a block of threads their roles, and registers to match: groups that consume,
/// and two warps that produce.
template <class S, class Shared, class Consume, class ProduceA, class ProduceB>
__device__ void specialize_warps(Shared& shared, Consume consume, ProduceA produce_a,
                                 ProduceB produce_b) {
  shared.init();
  if (group() < S::kGroups) {
    take_registers<S::kRegisters>();
    consume();
  } else {
    release_registers<S::kCopyRegisters>();
    if (warp() == 4 * S::kGroups) produce_a();
    if (warp() == 4 * S::kGroups + 1) produce_b();
  }
}

}  // namespace sash::cuda::hopper
