#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "../core/backend/device.h"
#include "../core/export.h"
#include "../core/ref.h"

namespace sash {

/// A block of device memory that tensors share. The version counts in-place writes: the backward
/// pass refuses a saved tensor that was written to since.
class SASH_API Storage : public RefCounted {
 public:
  /// Uninitialised memory from the device's caching allocator.
  Storage(int64_t bytes, Device device);
  /// Memory owned elsewhere; `release` runs when the last tensor is gone.
  Storage(void* data, int64_t bytes, Device device, std::function<void()> release);
  ~Storage() override;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// Whether the memory is owned elsewhere.
  bool is_foreign() const { return static_cast<bool>(release_); }
  uint32_t version() const { return version_.load(std::memory_order_acquire); }
  void bump_version() { version_.fetch_add(1, std::memory_order_acq_rel); }
  /// This memory replaces `before` in a tensor. That counts as a write for saved tensors.
  void follow(const Storage& before) {
    version_.store(before.version() + 1, std::memory_order_release);
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
  std::atomic<uint32_t> version_{0};
  Owned<std::function<void()>> release_;
};

}  // namespace sash
