#include "guarded_backend.h"

#include <cstddef>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "forwarding_backend.h"

namespace sash::testing {
namespace {

constexpr int64_t kZone = 128;
constexpr unsigned char kZoneByte = 0xA5;
constexpr int kFillByte = 0xFF;  // NaN in every floating dtype

/// Adds guard zones to memory while `guarding`.
class GuardedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void* allocate(int64_t bytes, Device device, Stream stream) override {
    const std::lock_guard lock(mutex_);
    if (!guarding_ || bytes == 0) return inner_.allocate(bytes, device, stream);
    auto* start = static_cast<unsigned char*>(inner_.allocate(bytes + 2 * kZone, device, stream));
    std::memset(start, kZoneByte, static_cast<size_t>(kZone));
    std::memset(start + kZone, kFillByte, static_cast<size_t>(bytes));
    std::memset(start + kZone + bytes, kZoneByte, static_cast<size_t>(kZone));
    blocks_[start + kZone] = bytes;
    return start + kZone;
  }

  void deallocate(void* memory, int64_t bytes, Device device, Stream stream) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(memory);
    if (found == blocks_.end()) return inner_.deallocate(memory, bytes, device, stream);
    check(memory, found->second);
    blocks_.erase(found);
    inner_.deallocate(static_cast<unsigned char*>(memory) - kZone, bytes + 2 * kZone, device,
                      stream);
  }

  void guard(bool on) {
    const std::lock_guard lock(mutex_);
    guarding_ = on;
  }

  std::vector<std::string> problems() {
    const std::lock_guard lock(mutex_);
    for (const auto& [memory, bytes] : blocks_) check(memory, bytes);
    return std::exchange(problems_, {});
  }

 private:
  void check(const void* memory, int64_t bytes) {
    const auto* block = static_cast<const unsigned char*>(memory);
    for (int64_t i = 0; i < kZone; ++i) {
      const bool before = block[-1 - i] == kZoneByte, after = block[bytes + i] == kZoneByte;
      if (before && after) continue;
      problems_.push_back("a block of " + std::to_string(bytes) + " bytes was overrun " +
                          std::to_string(i + 1) + " bytes " +
                          (before ? "behind its end" : "before its start"));
      return;
    }
  }

  std::mutex mutex_;
  bool guarding_ = false;
  std::unordered_map<const void*, int64_t> blocks_;
  std::vector<std::string> problems_;
};

GuardedBackend& installed() { return in_front_of_cpu<GuardedBackend>(); }

}  // namespace

GuardedMemory::GuardedMemory() { installed().guard(true); }
GuardedMemory::~GuardedMemory() { installed().guard(false); }
std::vector<std::string> GuardedMemory::problems() { return installed().problems(); }

}  // namespace sash::testing
