#include "capture_gate.h"

#include <cuda_runtime.h>

#include "check.h"

namespace sash::cuda {

void CaptureGate::begin_capture() {
  std::unique_lock lock(mutex_);
  ++captures_;  // first, so that no new wait begins
  no_waits_.wait(lock, [this] { return waits_ == 0; });
}

void CaptureGate::end_capture() {
  const std::lock_guard lock(mutex_);
  --captures_;
}

bool CaptureGate::wait_for_card() {
  {
    const std::lock_guard lock(mutex_);
    if (captures_ > 0) return false;
    ++waits_;
  }
  const cudaError_t status = cudaDeviceSynchronize();
  {
    const std::lock_guard lock(mutex_);
    --waits_;
  }
  no_waits_.notify_all();
  SASH_CUDA_CHECK(status);
  return true;
}

}  // namespace sash::cuda
