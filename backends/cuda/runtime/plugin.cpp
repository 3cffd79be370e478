#include <cuda_runtime.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "../../../core/backend.h"
#include "../../../ops/kernels/elementwise.h"
#include "../../../ops/kernels/linalg.h"
#include "../../../tensor/kernels/memory.h"
#include "backend.h"

#define SASH_PLUGIN_API extern "C" __attribute__((visibility("default")))

namespace sash::cuda {

/// Generated from the list of ops: fills the CUDA slots.
void register_ops();

namespace {

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

/// Why no card can be used; empty if `count` of them can.
std::string find_cards(int& count) {
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status == cudaSuccess && count > 0) return "";
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) return "no CUDA driver: libcuda.so.1 is not installed or does not work";
  if (driver < CUDART_VERSION && status == cudaErrorInsufficientDriver) {
    return "no CUDA driver: the installed one serves CUDA " + version(driver) +
           ", libsash_cuda needs " + version(CUDART_VERSION);
  }
  const std::string detail =
      std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")";
  if (status == cudaSuccess || status == cudaErrorNoDevice) {
    return "no CUDA device: the driver shows none; see CUDA_VISIBLE_DEVICES";
  }
  return "CUDA cannot be used: cudaGetDeviceCount failed with " + detail;
}

std::string install(uint32_t abi_version) {
  if (abi_version != kPluginAbiVersion) {
    return "libsash_cuda was built for plug-in ABI " + std::to_string(kPluginAbiVersion) +
           ", libsash has " + std::to_string(abi_version);
  }
  int count = 0;
  if (std::string reason = find_cards(count); !reason.empty()) return reason;
  register_ops();
  register_backend(std::make_unique<CudaBackend>(count));
  return "";
}

}  // namespace
}  // namespace sash::cuda

/// The one function that libsash calls by name; see `sash::RegisterPlugin`.
SASH_PLUGIN_API const char* sash_register_cuda(uint32_t abi_version) {
  thread_local std::string reason;
  try {
    reason = sash::cuda::install(abi_version);
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
    reason = "the CUDA backend could not be set up";
  }
  return reason.empty() ? nullptr : reason.c_str();
}

/// For tests: where this library sees a slot of libsash; null for a name it does not know.
SASH_PLUGIN_API const void* sash_cuda_slot_address(const char* name) {
  using namespace sash::kernels;
  const std::string_view asked(name);
  for (const sash::KernelBase* slot : std::initializer_list<const sash::KernelBase*>{
           &fill, &copy, &accumulate, &arange, &add, &matmul}) {
    if (asked == slot->name()) return slot;
  }
  return nullptr;
}
