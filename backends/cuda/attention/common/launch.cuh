#pragma once

#include <atomic>
#include <limits>
#include <string>

#include "../../../../core/backend/kernel.h"
#include "../../../../core/error.h"
#include "../../runtime/dependent_launch.cuh"

namespace sash::cuda {

/// Launches `blocks` blocks of `threads` threads with `shared` bytes of shared memory, for
/// attention. `allowed` belongs to the kernel, which never needs more than `most` bytes: see
/// `allow_shared_memory`.
template <class... Parameters, class... Arguments>
void launch(const KernelContext& context, void (*kernel)(Parameters...),
            std::atomic<uint64_t>& allowed, int64_t blocks, int threads, int shared, int most,
            const Arguments&... arguments) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<int32_t>::max()) {
    throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(blocks));
  }
  const CardGuard guard(context.device.index);
  allow_shared_memory(kernel, allowed, context.device.index, most);
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
           static_cast<size_t>(shared), static_cast<cudaStream_t>(context.stream.handle)>>>(
      arguments...);
  SASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace sash::cuda
