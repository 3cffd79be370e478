#include "backend.h"

#include <array>
#include <atomic>
#include <exception>
#include <mutex>

#include "../error.h"
#include "../object_pool.h"
#include "../runtime.h"
#include "plugin.h"

namespace sash {
namespace {

// Backends live until the process ends: tensors may outlive static destruction.
constinit std::array<std::atomic<Backend*>, kDeviceTypeCount> installed{};
constinit std::recursive_mutex open_mutex;
constinit std::array<bool, kDeviceTypeCount> tried{};
constinit std::array<std::atomic<int64_t>, kDeviceTypeCount> masks{};

std::string& failure(DeviceType type) {
  static auto* reasons = new std::array<std::string, kDeviceTypeCount>();
  return (*reasons)[static_cast<size_t>(type)];
}

Backend* find(DeviceType type) {
  return installed[static_cast<size_t>(type)].load(std::memory_order_acquire);
}

}  // namespace

Backend::~Backend() = default;

void* Backend::allocate_host(int64_t) {
  throw NotImplemented("allocate_host",
                       "the " + std::string(name(type())) + " backend has no page-locked memory");
}

void Backend::deallocate_host(void*, int64_t) noexcept {}

void Backend::record_stream(void*, Device, Stream) {}

bool Backend::capturing(Device) const { return false; }

std::string Backend::engine_id() { return {}; }

std::unique_ptr<distributed::Engine> Backend::make_engine(Device device, int, int,
                                                          const std::string&) {
  throw NotImplemented("distributed", "no collectives for " + std::string(name(device.type)));
}

void Backend::begin_range(const char*) {}
void Backend::end_range() {}

const uint64_t* Backend::random_base(Device) {
  static constinit const uint64_t zero = 0;
  return &zero;
}

void register_backend(std::unique_ptr<Backend> backend) {
  const auto type = static_cast<size_t>(backend->type());
  installed[type].store(backend.release(), std::memory_order_release);
}

Backend* try_backend(DeviceType type, std::string* reason) {
  if (Backend* found = find(type)) return found;
  const std::lock_guard lock(open_mutex);
  auto& was_tried = tried[static_cast<size_t>(type)];
  if (!was_tried) {
    was_tried = true;
    try {
      failure(type) = type == DeviceType::cpu ? detail::open_cpu() : detail::open_cuda();
    } catch (const std::exception& error) {
      failure(type) = error.what();
    }
  }
  if (reason) *reason = failure(type);
  return find(type);
}

Backend& backend(DeviceType type) {
  if (Backend* found = find(type)) return *found;
  std::string reason;
  if (Backend* found = try_backend(type, &reason)) return *found;
  throw DeviceError(name(type), reason);
}

Backend& backend(Device device) {
  Backend& found = backend(device.type);
  const int count = found.device_count();
  if (device.index >= 0 && device.index < count) return found;
  throw DeviceError(name(device.type), "an index in [0, " + std::to_string(count) + ")",
                    std::to_string(device.index));
}

void synchronize(Device device) { backend(device).synchronize(device); }

MemoryStats memory_stats(Device device) {
  MemoryStats stats = backend(device).memory_stats(device);
  stats.masks = detail::mask_bytes(device.type).load(std::memory_order_relaxed);
  stats.objects = static_cast<int64_t>(object_pool_bytes());
  return stats;
}

void reset_peak_memory(Device device) { backend(device).reset_peak(device); }
void empty_cache(Device device) { backend(device).empty_cache(device); }

void set_cache_limit(Device device, int64_t bytes) {
  if (bytes < 0) {
    throw ValueError("set_cache_limit", "at least 0 bytes", std::to_string(bytes));
  }
  backend(device).set_cache_limit(device, bytes);
}

std::atomic<int64_t>& detail::mask_bytes(DeviceType type) {
  return masks[static_cast<size_t>(type)];
}

void set_tf32_allowed(bool allowed) { runtime().tf32.store(allowed, std::memory_order_relaxed); }
bool tf32_allowed() { return runtime().tf32.load(std::memory_order_relaxed); }

}  // namespace sash
