#pragma once

#include "barrier.cuh"

/// Rings of tiles in shared memory between a producer warp, which starts copies, and the consumer
/// warps, which multiply.
namespace sash::cuda::hopper {

/// A stage of a ring of kStages buffers, and the parity of the turn, which is the number of rounds
/// through the ring. Turn n uses phase n of the barriers of each stage.
template <int kStages>
class PipelineState {
 public:
  PipelineState() = default;
  __device__ PipelineState(int stage, uint32_t parity) : stage_(stage), parity_(parity) {}

  __device__ int stage() const { return stage_; }
  __device__ uint32_t parity() const { return parity_; }
  __device__ void advance() {
    if (++stage_ == kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  /// The state of a ring of `stages` stages after as many steps. `stages` is kStages, or kStages
  /// divided by a power of two.
  template <int stages>
  __device__ PipelineState<stages> in() const {
    if constexpr (stages == kStages) {
      return *this;
    } else if constexpr (2 * stages == kStages) {
      const bool second = stage_ >= stages;
      return {second ? stage_ - stages : stage_, second};
    } else {
      return in<kStages / 2>().template in<stages>();
    }
  }

 private:
  int stage_ = 0;
  uint32_t parity_ = 0;
};

/// The barriers of a ring of `stages` buffers, each with `tiles` tiles of the type `Tile`. The
/// buffers are not members, because their alignment would pad each ring to a multiple of 1024
/// bytes.
template <class Tile, int stages, int tiles = 1>
struct Ring {
  using State = PipelineState<stages>;
  static constexpr int kStages = stages;

  Barrier full[stages], empty[stages];

  /// One thread calls this. `consumers` is the number of warps that call `release`, or of threads
  /// that arrive at `empty`; `producers` is the number of threads that arrive at `full`.
  __device__ void init(uint32_t consumers, uint32_t producers = 1) {
    for (int i = 0; i < stages; ++i) {
      full[i].init(producers);
      empty[i].init(consumers);
    }
  }

  /// For the producer: waits until the stage is free.
  __device__ void acquire(const State& at) { empty[at.stage()].wait(at.parity() ^ 1); }
  /// For one thread of the producer. Returns the barrier for the copies to the stage, which is full
  /// after its tiles and `extra` further bytes have been copied.
  __device__ Barrier& commit(const State& at, uint32_t extra = 0) {
    full[at.stage()].arrive_and_expect_tx(tiles * Tile::kBytes + extra);
    return full[at.stage()];
  }

  /// For consumers: waits until the stage is full.
  template <int n>
  __device__ void wait(const PipelineState<n>& at) {
    const State state = at.template in<stages>();
    full[state.stage()].wait(state.parity());
  }
  /// For consumers: tells that this warp has finished reading the stage. All lanes of the warp call
  /// this.
  template <int n>
  __device__ void release(const PipelineState<n>& at) {
    empty[at.template in<stages>().stage()].arrive_as_one();
  }
};

}  // namespace sash::cuda::hopper
