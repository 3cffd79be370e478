#pragma once

#include <type_traits>

#include "../../../core/backend/kernel.h"
#include "check.h"

/// Launches of kernels, on the card and the stream of a call.
namespace sash::cuda {

/// How many pieces of `size` cover `count`.
template <class T>
constexpr T ceil_div(T count, std::type_identity_t<T> size) {
  return (count + size - 1) / size;
}

inline cudaStream_t stream_of(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.stream.handle);
}

/// The blocks of a launch, with the place in the source that errors name.
struct LaunchGrid {
  LaunchGrid(dim3 all, const char* where = __builtin_FILE(), int at = __builtin_LINE())
      : blocks(all), file(where), line(at) {}
  LaunchGrid(int64_t count, const char* where = __builtin_FILE(), int at = __builtin_LINE())
      : LaunchGrid(dim3(block_count(count)), where, at) {}
  LaunchGrid(int64_t x, int64_t y, const char* where = __builtin_FILE(), int at = __builtin_LINE())
      : LaunchGrid(dim3(block_count(x), block_count(y)), where, at) {}

  dim3 blocks;
  const char* file;
  int line;
};

/// Launches `kernel` in blocks of `threads` with `shared` bytes of dynamic shared memory. Throws if
/// the launch fails.
template <class... Parameters, class... Arguments>
void launch_kernel(const KernelContext& context, const LaunchGrid& grid, int threads,
                   int64_t shared, void (*kernel)(Parameters...), const Arguments&... arguments) {
  const CardGuard guard(context.device.index);
  kernel<<<grid.blocks, static_cast<unsigned>(threads), static_cast<size_t>(shared),
           stream_of(context)>>>(static_cast<Parameters>(arguments)...);
  const cudaError_t launched = cudaGetLastError();
  check(fails_now() ? fault(launched) : launched, "cudaGetLastError()", grid.file, grid.line);
}

/// The same for a kernel that may need over 48 KiB of shared memory.
template <class... Parameters, class... Arguments>
void launch_large_kernel(const KernelContext& context, const LaunchGrid& grid, int threads,
                         int64_t shared, void (*kernel)(Parameters...),
                         const Arguments&... arguments) {
  const CardGuard guard(context.device.index);
  SASH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared)));
  launch_kernel(context, grid, threads, shared, kernel, arguments...);
}

}  // namespace sash::cuda
