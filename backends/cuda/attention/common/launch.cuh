#pragma once

#include <atomic>
#include <limits>
#include <string>

#include "../../../../core/backend/kernel.h"
#include "../../../../core/error.h"
#include "../../runtime/check.h"

namespace sash::cuda {

/// Launches `blocks` blocks of `threads` threads with `shared` bytes of shared memory, for
/// attention. `allowed` belongs to the kernel: a bit for each card on which it may already use
/// `most` bytes of shared memory, the most it ever needs.
template <class... Parameters, class... Arguments>
void launch(const KernelContext& context, void (*kernel)(Parameters...),
            std::atomic<uint64_t>& allowed, int64_t blocks, int threads, int shared, int most,
            const Arguments&... arguments) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<int32_t>::max()) {
    throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(blocks));
  }
  const CardGuard guard(context.device.index);
  const uint64_t bit = uint64_t{1} << context.device.index;
  if (!(allowed.load(std::memory_order_relaxed) & bit)) {
    SASH_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared));
    allowed.fetch_or(bit, std::memory_order_relaxed);
  }
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
           static_cast<size_t>(shared), static_cast<cudaStream_t>(context.stream.handle)>>>(
      arguments...);
  SASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace sash::cuda
