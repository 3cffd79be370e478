#include "check.h"

#include <limits>
#include <string>

#include "../../../core/error.h"

namespace sash::cuda {
namespace {

std::string failure(const char* statement, const char* file, int line, const char* name,
                    const char* text) {
  const std::string path(file);
  return std::string(statement) + " failed with " + name + " (" + text + ") at " +
         path.substr(path.rfind('/') + 1) + ":" + std::to_string(line);
}

}  // namespace

std::atomic<int64_t> calls_to_fault = 0;

void check(cudaError_t status, const char* statement, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that the next launch check does not report it again
  const std::string message =
      failure(statement, file, line, cudaGetErrorName(status), cudaGetErrorString(status));
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory("cuda", message);
  throw DeviceError("cuda", message);
}

void check(cublasStatus_t status, const char* statement, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string message = failure(statement, file, line, cublasLtGetStatusName(status),
                                      cublasLtGetStatusString(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemory("cuda", message);
  throw DeviceError("cuda", message);
}

CardGuard::CardGuard(int index) {
  SASH_CUDA_CHECK(cudaGetDevice(&former_));
  if (former_ == index) return;
  SASH_CUDA_CHECK(cudaSetDevice(index));
  changed_ = true;
}

CardGuard::~CardGuard() {
  if (changed_) cudaSetDevice(former_);
}

void* try_allocate(cudaError_t (*allocate)(void**, size_t), int64_t bytes) {
  const RelaxedCapture relaxed;
  void* memory = nullptr;
  const cudaError_t status =
      fails_now() ? cudaErrorMemoryAllocation : allocate(&memory, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "allocate(&memory, bytes)", __FILE__, __LINE__);
  return memory;
}

unsigned block_count(int64_t blocks) {
  if (blocks > std::numeric_limits<int32_t>::max()) {
    throw NotImplemented("cuda", "a launch of " + std::to_string(blocks) + " blocks");
  }
  return static_cast<unsigned>(blocks);
}

int card_attribute(int card, cudaDeviceAttr attribute) {
  int value = 0;
  SASH_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, card));
  return value;
}

void wait_stream(cudaStream_t stream, cudaStream_t other, int other_card) {
  const CardGuard guard(other_card);
  cudaEvent_t event = nullptr;
  SASH_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const cudaError_t recorded = cudaEventRecord(event, other);
  const cudaError_t waited = cudaStreamWaitEvent(stream, event, 0);
  cudaEventDestroy(event);  // CUDA frees it after the wait
  SASH_CUDA_CHECK(recorded);
  SASH_CUDA_CHECK(waited);
}

}  // namespace sash::cuda
