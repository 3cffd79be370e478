#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

/// Every call into the CUDA runtime or cuBLAS, and every launch, goes through one macro that
/// throws.
namespace sash::cuda {

/// Throw unless `status` is success: `OutOfMemory` for cudaErrorMemoryAllocation, else
/// `DeviceError`, with the statement, its place and the error's name and text.
void check(cudaError_t status, const char* statement, const char* file, int line);
void check(cublasStatus_t status, const char* statement, const char* file, int line);

/// Makes `index` the calling thread's card, and puts the former one back at the end of the scope.
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

/// Lets this thread allocate and ask events while one of its streams is being captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// What is queued on `follower` from now on runs after what is queued on `leader`, a stream of
/// `leading_card`.
void follow(cudaStream_t follower, cudaStream_t leader, int leading_card);

}  // namespace sash::cuda

#define SASH_CUDA_CHECK(statement) ::sash::cuda::check((statement), #statement, __FILE__, __LINE__)
