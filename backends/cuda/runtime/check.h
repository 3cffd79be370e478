#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

/// `SASH_CUDA_CHECK`: checks every call of the CUDA runtime and cuBLAS, and every launch, and
/// throws on failure.
namespace sash::cuda {

/// Throws unless `status` is success: `OutOfMemory` if an allocation failed, else `DeviceError`.
/// The message has the statement, file, line, and the error's name and text.
void check(cudaError_t status, const char* statement, const char* file, int line);
void check(cublasStatus_t status, const char* statement, const char* file, int line);

/// Calls until one fails in place of being made, which tests set; 0: none does.
extern std::atomic<int64_t> calls_to_fault;

inline bool fails_now() {
  return calls_to_fault.load(std::memory_order_relaxed) > 0 && calls_to_fault.fetch_sub(1) == 1;
}
inline cudaError_t fault(cudaError_t) { return cudaErrorUnknown; }
inline cublasStatus_t fault(cublasStatus_t) { return CUBLAS_STATUS_INTERNAL_ERROR; }

/// Sets the calling thread's card to `index`; the destructor restores the previous one.
class CardGuard {
 public:
  explicit CardGuard(int index);
  ~CardGuard();
  CardGuard(const CardGuard&) = delete;
  CardGuard& operator=(const CardGuard&) = delete;

 private:
  int former_ = 0;
  bool changed_ = false;
};

/// Allows this thread to allocate memory and query events during a capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// The memory from `allocate(&memory, bytes)`, or null if there is no memory left. Allowed during a
/// capture.
void* try_allocate(cudaError_t (*allocate)(void**, size_t), int64_t bytes);

/// Of a launch; `NotImplemented` if there are more than CUDA counts, 2^31 - 1.
unsigned block_count(int64_t blocks);

/// A property of a card.
int card_attribute(int card, cudaDeviceAttr attribute);

/// Makes work queued on `stream` from now on wait for the work already queued on `other`, a stream
/// of `other_card`.
void wait_stream(cudaStream_t stream, cudaStream_t other, int other_card);

}  // namespace sash::cuda

#define SASH_CUDA_CHECK(statement)                                                          \
  ::sash::cuda::check(                                                                      \
      ::sash::cuda::fails_now() ? ::sash::cuda::fault(decltype(statement){}) : (statement), \
      #statement, __FILE__, __LINE__)
