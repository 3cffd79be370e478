#pragma once

#include "../../../core/backend/backend.h"
#include "allocator.h"

namespace sash::cpu {

/// The CPU backend. Memory comes from a caching allocator. Every call returns after its work is
/// done. There is one stream (null). Graph capture is not supported.
class CpuBackend final : public Backend {
 public:
  DeviceType type() const override { return DeviceType::cpu; }
  int device_count() const override { return 1; }
  /// The processor's model name and the number of threads.
  std::string description(Device device) const override;

  void* allocate(int64_t bytes, Device, Stream) override { return allocator_.allocate(bytes); }
  void deallocate(void* memory, int64_t bytes, Device, Stream) noexcept override {
    allocator_.deallocate(memory, bytes);
  }
  MemoryStats memory_stats(Device) const override { return allocator_.stats(); }
  void reset_peak(Device) override { allocator_.reset_peak(); }
  void empty_cache(Device) override { allocator_.empty_cache(); }
  void set_cache_limit(Device, int64_t bytes) override { allocator_.set_limit(bytes); }

  void copy(void* dst, Device to, const void* src, Device from, int64_t bytes,
            Stream stream) override;

  Stream current_stream(Device) override { return {}; }
  void set_current_stream(Device, Stream) override {}
  Stream create_stream(Device) override { return {}; }
  void destroy_stream(Device, Stream) override {}
  void synchronize(Device) override {}

  Event create_event(Device device) override;
  void destroy_event(Device device, Event event) override;
  void record(Event event, Device device, Stream stream) override;
  void wait(Event, Device, Stream) override {}
  double elapsed_ms(Event start, Event stop, Device device) override;

  std::unique_ptr<distributed::Engine> make_engine(Device device, int rank, int size,
                                                   const std::string& id) override;

  void begin_capture(Device device, Stream stream) override;
  void* end_capture(Device device, Stream stream) override;
  void replay(void* graph, Device device, Stream stream) override;
  void destroy_graph(void*) override {}

 private:
  CachingAllocator allocator_;
};

/// Installs the backend of `DeviceType::cpu`.
void register_cpu_backend();

}  // namespace sash::cpu
