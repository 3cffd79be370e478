#pragma once

#include <atomic>
#include <cstdint>

namespace sash {

/// Call in a loop that spins: lets the other hardware thread of the core run.
void spin_pause();

/// A lock to hold for a few instructions. A waiting thread spins, and yields after 64 pauses.
class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) wait();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  void wait() const;
  std::atomic_flag flag_;
};

/// A mutex of four bytes, for classes with many objects. Waiting threads sleep.
class SmallMutex {
 public:
  void lock() {
    uint32_t before = kFree;
    if (state_.compare_exchange_strong(before, kHeld)) return;
    while (state_.exchange(kAwaited) != kFree) state_.wait(kAwaited);
  }
  void unlock() {
    if (state_.exchange(kFree) == kAwaited) state_.notify_one();
  }

 private:
  enum : uint32_t { kFree, kHeld, kAwaited };
  std::atomic<uint32_t> state_{kFree};
};

}  // namespace sash
