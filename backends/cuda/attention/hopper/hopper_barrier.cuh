#pragma once

#include <cstdint>

/// Set while code for sm_90a is made: the kernels of these headers are empty elsewhere.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SASH_HOPPER
#endif

/// Barriers in shared memory, on which threads and copies meet (PTX: mbarrier).
///
/// Phases of a barrier are numbered from 0. One ends when `count` arrivals have come, and with them
/// all the bytes that they announced.
namespace sash::cuda::hopper {

__device__ inline uint32_t shared_address(const void* x) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(x));
}

class Barrier {
 public:
  /// By one thread, which calls `publish_barriers` when all are set, before the block meets.
  __device__ void init(uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count));
  }

  /// What this thread did before is seen by those who wait. Threads that are not `chosen` do
  /// nothing; they need not branch around the call.
  __device__ void arrive(bool chosen = true) {
    asm volatile(
        "{\n"
        ".reg .pred chosen;\n"
        "setp.ne.b32 chosen, %1, 0;\n"
        "@chosen mbarrier.arrive.shared::cta.b64 _, [%0];\n"
        "}" ::"r"(address()),
        "r"(static_cast<int>(chosen))
        : "memory");
  }

  /// By all lanes of a warp, which arrive as one: the same holds of what any of them did. It is the
  /// last that arrives, as the one that compute-sanitizer remembers of those that read a word.
  __device__ void arrive_as_one() {
    __syncwarp();
    arrive(threadIdx.x % 32 == 31);
  }

  /// The same, and `bytes` that copies will bring belong to this phase too.
  __device__ void arrive_and_expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }

  /// Until the latest phase of this parity has ended; the one before phase 0 has. Between two calls
  /// the barrier may enter no more than one new phase.
  __device__ void wait(uint32_t parity) {
    while (!has_ended(parity)) {
    }
  }

  __device__ uint32_t address() const { return shared_address(this); }

 private:
  __device__ bool has_ended(uint32_t parity) {
    uint32_t ended;
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.u32 %0, 1, 0, ended;\n"
        "}"
        : "=r"(ended)
        : "r"(address()), "r"(parity)
        : "memory");
    return ended != 0;
  }

  uint64_t state_;
};

/// Whether this is the one of a warp's lanes that starts copies, always the same one. By all lanes;
/// behind it, the compiler knows that there is but one thread.
__device__ inline bool is_chosen() {
  uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, chosen;\n"
      "}"
      : "=r"(chosen));
  return chosen != 0;
}

/// Lets copies that start later see what this thread did in shared memory.
__device__ inline void let_copies_see() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Lets copies see barriers that this thread has set.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;");
  let_copies_see();
}

/// Registers per thread from here on, by all four warps of a group. A kernel that uses them has a
/// bound on its registers; the sum over all groups stays within it.
template <int n>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

}  // namespace sash::cuda::hopper
