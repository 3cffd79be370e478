#pragma once

#include "../attention/hopper/hopper_pipeline.cuh"
#include "../attention/hopper/hopper_wgmma.cuh"

/// What the sm_90a kernels of block-sparse products share. They multiply [64][depth] by
/// [depth][256], both in shared memory: one warpgroup has all 64 x 256 sums, a second block of
/// threads on the same multiprocessor multiplies while the first one writes.
namespace sash::cuda::sparse {

#define SASH_SUM_8(i) \
  "%" #i "0, %" #i "1, %" #i "2, %" #i "3, %" #i "4, %" #i "5, %" #i "6, %" #i "7"
#define SASH_SUM_10(i) SASH_SUM_8(i) ", %" #i "8, %" #i "9"
#define SASH_BIND_8(i)                                                                  \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), \
      "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define SASH_BIND_32(i) SASH_BIND_8(i), SASH_BIND_8(i + 8), SASH_BIND_8(i + 16), SASH_BIND_8(i + 24)

/// sum[64][256] += a b over a depth of 16. `a_across`: a is [depth][64] in memory, not [64][depth];
/// `b_across`: b is [depth][256], not [256][depth].
#define SASH_MULTIPLY(T, type)                                                                    \
  template <bool a_across, bool b_across>                                                         \
  __device__ void multiply_256(std::type_identity<T>, float(&sum)[128], uint64_t a, uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                   \
                 " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " SASH_SUM_10(1) ", " SASH_SUM_10(2) ", " \
                 SASH_SUM_10(3) ", " SASH_SUM_10(4) ", " SASH_SUM_10(5) ", " SASH_SUM_10(6) ", " \
                 SASH_SUM_10(7) ", " SASH_SUM_10(8) ", " SASH_SUM_10(9) ", " SASH_SUM_10(10) ", " \
                 SASH_SUM_10(11) ", " SASH_SUM_8(12) "}, %128, %129, 1, 1, 1, %130, %131;"      \
                 : SASH_BIND_32(0), SASH_BIND_32(32), SASH_BIND_32(64), SASH_BIND_32(96)        \
                 : "l"(a), "l"(b), "n"(a_across ? 1 : 0), "n"(b_across ? 1 : 0)); \
  }
SASH_MULTIPLY(__nv_bfloat16, "bf16")
SASH_MULTIPLY(__half, "f16")
#undef SASH_MULTIPLY
#undef SASH_BIND_32
#undef SASH_BIND_8
#undef SASH_SUM_10
#undef SASH_SUM_8

inline constexpr int kRingStages = 2;
/// Four warps multiply, one copies.
inline constexpr int kRingThreads = 160;

/// The ring: tiles Left [64 x 64] and Right [64 x 256], either way round.
template <class Left, class Right>
struct RingShared {
  Right right[kRingStages];
  Left left[kRingStages];
  hopper::Barrier full[kRingStages], empty[kRingStages];

  /// By all threads, once.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kRingStages; ++i) {
        full[i].init(1);
        empty[i].init(4);
      }
      hopper::fence_barrier_init();
    }
    __syncthreads();
  }
};

using RingState = hopper::PipelineState<kRingStages>;

/// sum += left right of the next `steps` stages, by the four warps.
template <bool a_across, bool b_across, class Left, class Right>
__device__ void multiply_stages(RingShared<Left, Right>& shared, RingState& at, int steps,
                                float (&sum)[128]) {
  using T = typename Left::Element;
  const hopper::Operand left(shared.left[0]), right(shared.right[0]);
  for (int step = 0; step < steps; ++step) {
    const hopper::Operand a = left.at(at.stage(), Left::kBytes);
    const hopper::Operand b = right.at(at.stage(), Right::kBytes);
    shared.full[at.stage()].wait(at.parity());
    hopper::fence_operand(sum);
    hopper::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const auto to_a = static_cast<uint32_t>(k * (a_across ? 16 * Left::kRowBytes : 32));
      const auto to_b = static_cast<uint32_t>(k * (b_across ? 16 * Right::kRowBytes : 32));
      multiply_256<a_across, b_across>(std::type_identity<T>{}, sum,
                                       (a + to_a).template descriptor<Left>(),
                                       (b + to_b).template descriptor<Right>());
    }
    hopper::warpgroup_commit();
    hopper::warpgroup_wait<0>();
    hopper::fence_operand(sum);
    shared.empty[at.stage()].arrive_as_one();
    at.advance();
  }
}

/// Copies 64 x 64 elements from (row, column) on to `to`; zeros past the last row. By one thread.
__device__ inline void copy_square(uint32_t to, const CUtensorMap& x, int row, int column,
                                   hopper::Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %4}], [%5];" ::"r"(to),
      "l"(&x), "r"(column), "r"(row), "r"(0), "r"(barrier.address())
      : "memory");
}

inline constexpr uint32_t kSquareBytes = 64 * 64 * 2;

/// The four multiplying warps.
__device__ inline void sync_multipliers() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

}  // namespace sash::cuda::sparse
