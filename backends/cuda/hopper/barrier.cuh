#pragma once

#include <cstdint>

/// Defined while code for sm_90a is compiled. For other architectures, the kernels that use these
/// headers are empty.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SASH_HOPPER
#endif

/// Barriers in shared memory for threads and copies (PTX: mbarrier).
///
/// The phases of a barrier count from 0. A phase ends after `count` arrivals and after all bytes
/// that these arrivals expect.
namespace sash::cuda::hopper {

__device__ inline uint32_t shared_address(const void* x) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(x));
}

class Barrier {
 public:
  /// One thread calls this, then `fence_barrier_init`, before __syncthreads.
  __device__ void init(uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count));
  }

  /// Makes the earlier memory operations of this thread visible to the threads that wait. Threads
  /// with `active` false do nothing; the instruction is predicated, so there is no branch.
  __device__ void arrive(bool active = true) {
    asm volatile(
        "{\n"
        ".reg .pred active;\n"
        "setp.ne.b32 active, %1, 0;\n"
        "@active mbarrier.arrive.shared::cta.b64 _, [%0];\n"
        "}" ::"r"(address()),
        "r"(static_cast<int>(active))
        : "memory");
  }

  /// One arrival for a whole warp, which makes the operations of all its lanes visible. The last
  /// lane arrives, because compute-sanitizer remembers only the last reader of a word.
  __device__ void arrive_as_one() {
    __syncwarp();
    arrive(threadIdx.x % 32 == 31);
  }

  /// `count` arrivals at once.
  __device__ void arrive_many(uint32_t count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(count)
                 : "memory");
  }

  /// Arrives, and adds `bytes` of copies to the phase.
  __device__ void arrive_and_expect_tx(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }

  /// Waits until the latest phase of this parity has ended. Phase -1 counts as ended. At most one
  /// phase may end between two waits.
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

/// Adds 1 to a count in shared memory. A thread that reads the new count by `read_count` sees the
/// earlier memory operations of the thread that added.
__device__ inline void add_one(unsigned& count) {
  asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(shared_address(&count))
               : "memory");
}
__device__ inline unsigned read_count(const unsigned& count) {
  unsigned x;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
               : "=r"(x)
               : "r"(shared_address(&count))
               : "memory");
  return x;
}

/// Named barriers of `threads` threads: `barrier_sync` waits for all threads, `barrier_arrive` only
/// arrives. Unlike a barrier in shared memory, a named barrier is not read by loads, which take
/// long after products.
__device__ inline void barrier_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ inline void barrier_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/// True on one lane of a warp, which is always the same lane. All lanes call this. Unlike a test of
/// the lane number, it tells the compiler that only one thread executes the branch.
__device__ inline bool elect_one() {
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

/// Makes the earlier writes of this thread to shared memory visible to copies that start later.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Call this before copies that read or write global memory that other threads wrote, when their
/// writes are visible to this thread.
__device__ inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Makes barriers that this thread has initialised visible to copies.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;");
  fence_proxy_async();
}

/// Sets the number of registers of each thread of a group. All four warps of the group call this.
/// The kernel has launch bounds, and the sum over all groups must not exceed the registers of the
/// launch.
template <int n>
__device__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

}  // namespace sash::cuda::hopper
