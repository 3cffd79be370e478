#pragma once

#include "../hopper/pipeline.cuh"
#include "../hopper/wgmma.cuh"
#include "block_sparse.h"

/// What the sm_90a kernels of block-sparse products share: a ring of tiles in shared memory, which
/// one warp fills by TMA and four warps multiply by wgmma. Two blocks of threads share a
/// multiprocessor: one multiplies while the other waits or writes.
namespace sash::cuda::sparse {

using hopper::copy_box;
using hopper::Tile;

/// Four warps multiply, one copies.
inline constexpr int kRingThreads = 160;

/// A ring of `stages` stages. A stage has a left tile and a right tile.
template <class L, class R, int stages>
struct Ring {
  using Left = L;
  using Right = R;
  using State = hopper::PipelineState<stages>;
  static constexpr uint32_t kStageBytes = Left::kBytes + Right::kBytes;

  Left left[stages];
  Right right[stages];
  hopper::Barrier full[stages], empty[stages];

  /// Initialises the ring. All threads call this once.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) {
        full[i].init(1);
        empty[i].init(4);
      }
      hopper::fence_barrier_init();
    }
    __syncthreads();
  }

  /// Waits until the stage is free, and expects `bytes`. The copying thread calls this.
  __device__ hopper::Barrier& acquire(const State& at, uint32_t bytes = kStageBytes) {
    empty[at.stage()].wait(at.parity() ^ 1);
    full[at.stage()].arrive_and_expect_tx(bytes);
    return full[at.stage()];
  }
};

template <int parts, int n>
__device__ void fence_sums(float (&sum)[parts][n]) {
#pragma unroll
  for (int i = 0; i < parts; ++i) hopper::fence_operand(sum[i]);
}

/// sum += left right over the next `steps` stages. The four multiplying warps call this. sum[i] has
/// rows [64 i, 64 i + 64) of the left tile. If `a_across`, left tiles are [depth][rows]. If
/// `b_across`, right tiles are [depth][columns].
template <int depth, bool a_across, bool b_across, class X, int parts, int n>
__device__ void multiply_stages(X& ring, typename X::State& at, int steps, float (&sum)[parts][n]) {
  using Left = typename X::Left;
  using Right = typename X::Right;
  constexpr uint32_t a_step = a_across ? 16 * Left::kRowBytes : 32;
  constexpr uint32_t b_step = b_across ? 16 * Right::kRowBytes : 32;
  constexpr uint32_t a_part = a_across ? 64 / Left::kSlab * Left::kSlabBytes : 64 * Left::kRowBytes;
  for (int step = 0; step < steps; ++step) {
    const hopper::Operand a(ring.left[at.stage()]), b(ring.right[at.stage()]);
    ring.full[at.stage()].wait(at.parity());
    fence_sums(sum);
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < depth / 16; ++k) {
#pragma unroll
      for (int i = 0; i < parts; ++i) {
        hopper::detail::multiply_16<a_across, b_across>(
            std::type_identity<typename Left::Element>{}, sum[i],
            (a + (static_cast<uint32_t>(i) * a_part + static_cast<uint32_t>(k) * a_step))
                .template descriptor<Left>(),
            (b + static_cast<uint32_t>(k) * b_step).template descriptor<Right>(), true);
      }
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    fence_sums(sum);
    ring.empty[at.stage()].arrive_as_one();
    at.advance();
  }
}

template <int parts, int n>
__device__ void clear(float (&sum)[parts][n]) {
#pragma unroll
  for (int i = 0; i < parts; ++i) {
#pragma unroll
    for (float& x : sum[i]) x = 0;
  }
}

/// The four multiplying warps.
__device__ inline void sync_multipliers() { hopper::barrier_sync(1, 128); }

/// The memory of a product whose operands come by TMA.
template <class T>
struct MappedParams {
  CUtensorMap a, data;
  const T* bias;
  T* y;
  kernels::BlockLines lines;
  int64_t rows, y_width;

  MappedParams(const ProductCall& call, const CUtensorMap& a_map, const CUtensorMap& data_map)
      : a(a_map),
        data(data_map),
        bias(static_cast<const T*>(call.bias)),
        y(call.y.ptr<T>()),
        lines(call.lines),
        rows(call.y.shape[0]),
        y_width(call.y.shape[1]) {}
};

}  // namespace sash::cuda::sparse
