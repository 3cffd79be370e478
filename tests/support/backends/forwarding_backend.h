#pragma once

#include <sash/core/backend/backend.h>

#include <memory>
#include <string>
#include <utility>

namespace sash::testing {

/// Forwards every call to another backend; tests override some.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

  void* allocate(int64_t bytes, Device device, Stream stream) override {
    return inner_.allocate(bytes, device, stream);
  }
  void deallocate(void* memory, int64_t bytes, Device device, Stream stream) noexcept override {
    inner_.deallocate(memory, bytes, device, stream);
  }
  DeviceType type() const override { return inner_.type(); }
  int device_count() const override { return inner_.device_count(); }
  std::string description(Device device) const override { return inner_.description(device); }
  MemoryStats memory_stats(Device device) const override { return inner_.memory_stats(device); }
  void reset_peak(Device device) override { inner_.reset_peak(device); }
  void empty_cache(Device device) override { inner_.empty_cache(device); }
  void set_cache_limit(Device device, int64_t bytes) override {
    inner_.set_cache_limit(device, bytes);
  }
  void* allocate_host(int64_t bytes) override { return inner_.allocate_host(bytes); }
  void deallocate_host(void* memory, int64_t bytes) noexcept override {
    inner_.deallocate_host(memory, bytes);
  }
  void copy(void* dst, Device to, const void* src, Device from, int64_t bytes,
            Stream stream) override {
    inner_.copy(dst, to, src, from, bytes, stream);
  }
  Stream current_stream(Device device) override { return inner_.current_stream(device); }
  void set_current_stream(Device device, Stream stream) override {
    inner_.set_current_stream(device, stream);
  }
  Stream create_stream(Device device) override { return inner_.create_stream(device); }
  void destroy_stream(Device device, Stream stream) override {
    inner_.destroy_stream(device, stream);
  }
  void synchronize(Device device) override { inner_.synchronize(device); }
  Event create_event(Device device) override { return inner_.create_event(device); }
  void destroy_event(Device device, Event event) override { inner_.destroy_event(device, event); }
  void record(Event event, Device device, Stream stream) override {
    inner_.record(event, device, stream);
  }
  void wait(Event event, Device device, Stream stream) override {
    inner_.wait(event, device, stream);
  }
  double elapsed_ms(Event start, Event stop, Device device) override {
    return inner_.elapsed_ms(start, stop, device);
  }
  void begin_capture(Device device, Stream stream) override {
    inner_.begin_capture(device, stream);
  }
  void* end_capture(Device device, Stream stream) override {
    return inner_.end_capture(device, stream);
  }
  void replay(void* graph, Device device, Stream stream) override {
    inner_.replay(graph, device, stream);
  }
  void destroy_graph(void* graph) override { inner_.destroy_graph(graph); }
  void record_stream(void* memory, Device device, Stream stream) override {
    inner_.record_stream(memory, device, stream);
  }
  bool capturing(Device device) const override { return inner_.capturing(device); }
  const uint64_t* random_base(Device device) override { return inner_.random_base(device); }
  void begin_range(const char* name) override { inner_.begin_range(name); }
  void end_range() override { inner_.end_range(); }

 protected:
  Backend& inner_;
};

/// The only `B`, made by the first call. It replaces the CPU backend for the rest of the process,
/// because its memory may outlive a test.
template <class B>
B& in_front_of_cpu() {
  static B* const installed = [] {
    auto made = std::make_unique<B>(backend(DeviceType::cpu));
    B* const raw = made.get();
    register_backend(std::move(made));
    return raw;
  }();
  return *installed;
}

}  // namespace sash::testing
