#pragma once

#include "check.h"

/// Kernels that start while the one before them on the stream ends ("programmatic dependent
/// launch", from sm_90 on). They save most of a launch where that one is short.
namespace sash::cuda {

/// Called by such a kernel before it reads what earlier ones wrote, and before it writes.
inline __device__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

template <class... Parameters, class... Arguments>
void launch_dependent(void (*kernel)(Parameters...), dim3 grid, int threads, cudaStream_t stream,
                      const Arguments&... arguments) {
  int card = 0, major = 0;
  SASH_CUDA_CHECK(cudaGetDevice(&card));
  SASH_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = static_cast<unsigned>(threads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = major >= 9 ? 1 : 0;
  SASH_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace sash::cuda
