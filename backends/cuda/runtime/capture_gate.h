#pragma once

#include <condition_variable>
#include <mutex>

namespace sash::cuda {

/// Keeps waits for a whole card apart from captures on it: CUDA ends every capture of a card when
/// any thread waits for the card. Thread-safe.
class CaptureGate {
 public:
  /// Call before a capture begins. Returns once no thread waits for the card.
  void begin_capture();
  /// Call after the capture ended, or did not begin.
  void end_capture();
  /// Waits for the calling thread's card, which is the gate's. Returns false, and does not wait,
  /// while something is captured.
  bool wait_for_card();

 private:
  std::mutex mutex_;
  std::condition_variable no_waits_;
  int captures_ = 0, waits_ = 0;
};

}  // namespace sash::cuda
