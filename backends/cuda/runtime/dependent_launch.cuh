#pragma once

#include <atomic>

#include "launch.cuh"

/// Kernels that start while the previous kernel on the stream ends ("programmatic dependent
/// launch", from sm_90 on). After a short kernel, this saves most of the time of a launch.
namespace sash::cuda {

/// A kernel that starts early calls this before it reads what earlier kernels wrote, and before it
/// writes.
inline __device__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// If the next kernel starts early, lets it start once all blocks have called this or ended.
inline __device__ void start_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// Prefetches a line to the L2 cache. It may be called before `wait_for_previous_kernel`, because
/// later writes update the line in the L2 cache.
inline __device__ void prefetch(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

/// The first number of the compute capability of the card.
inline int card_generation() {
  int card = 0;
  SASH_CUDA_CHECK(cudaGetDevice(&card));
  return card_attribute(card, cudaDevAttrComputeCapabilityMajor);
}

/// Lets `kernel` use `most` bytes of dynamic shared memory, and makes shared memory as large a part
/// of the multiprocessor's memory as possible. Every kernel that starts early calls this, because a
/// kernel that needs another division waits until the previous kernel has ended. Asks the driver
/// once for each card.
template <auto kernel>
void allow_shared_memory(int card, int64_t most) {
  static constinit std::atomic<uint64_t> done{0};  // a bit for each card
  const uint64_t bit = uint64_t{1} << card;
  if (done.load(std::memory_order_relaxed) & bit) return;
  SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(most)));
  SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared));
  done.fetch_or(bit, std::memory_order_relaxed);
}

struct DependentLaunch {
  LaunchGrid grid;
  int threads;
  int64_t shared = 0;    ///< bytes of dynamic shared memory
  unsigned cluster = 1;  ///< blocks along x that make a cluster, over 1 only from sm_90 on
};

template <class... Parameters, class... Arguments>
void launch_dependent(const KernelContext& context, const DependentLaunch& launch,
                      void (*kernel)(Parameters...), const Arguments&... arguments) {
  const CardGuard guard(context.device.index);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = launch.cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid.blocks;
  config.blockDim = static_cast<unsigned>(launch.threads);
  config.dynamicSmemBytes = static_cast<size_t>(launch.shared);
  config.stream = stream_of(context);
  config.attrs = attributes;
  config.numAttrs = card_generation() < 9 ? 0 : launch.cluster > 1 ? 2 : 1;
  SASH_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace sash::cuda
