#pragma once

#include <condition_variable>
#include <mutex>

#include "check.h"

namespace sash::cuda {

/// Prevents waits for a whole card during captures on it, because CUDA ends every capture of a card
/// when any thread waits for the card. Thread-safe.
class CaptureGate {
 public:
  /// Call before a capture begins. Returns once no thread waits for the card.
  void begin_capture() {
    std::unique_lock lock(mutex_);
    ++captures_;  // first, so that no new wait begins
    no_waits_.wait(lock, [this] { return waits_ == 0; });
  }
  /// Call after the capture ended, or did not begin.
  void end_capture() {
    const std::lock_guard lock(mutex_);
    --captures_;
  }
  /// Waits for the calling thread's card, which must be the card of the gate. Returns false without
  /// waiting during a capture.
  bool wait_for_card() {
    std::unique_lock lock(mutex_);
    if (captures_ > 0) return false;
    ++waits_;
    lock.unlock();
    const cudaError_t status = cudaDeviceSynchronize();
    lock.lock();
    --waits_;
    no_waits_.notify_all();
    SASH_CUDA_CHECK(status);
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable no_waits_;
  int captures_ = 0, waits_ = 0;
};

}  // namespace sash::cuda
