#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "../../../core/backend/backend.h"
#include "allocator.h"
#include "capture_gate.h"
#include "host_memory.h"

namespace sash::cuda {

/// The CUDA backend. Each card has a caching allocator and a default stream, which a null `Stream`
/// stands for. Unlike CUDA's legacy default stream, this stream can be captured and does not wait
/// for other streams. The current stream is set per thread. A card is initialised on first use.
class CudaBackend final : public Backend {
 public:
  static constexpr int kMostCards = 64;

  explicit CudaBackend(int device_count);
  ~CudaBackend() override;

  DeviceType type() const override { return DeviceType::cuda; }
  int device_count() const override { return device_count_; }
  /// "NVIDIA H200, 132 multiprocessors, 139.8 GiB".
  std::string description(Device device) const override;

  void* allocate(int64_t bytes, Device device, Stream stream) override;
  void deallocate(void* memory, int64_t bytes, Device device, Stream stream) noexcept override;
  MemoryStats memory_stats(Device device) const override;
  void reset_peak(Device device) override;
  void empty_cache(Device device) override;

  void* allocate_host(int64_t bytes) override { return host_memory_.allocate(bytes); }
  void deallocate_host(void* memory, int64_t) noexcept override { host_memory_.deallocate(memory); }

  /// In a copy between two cards, `stream` is a stream of `from`. The copy waits for the work on
  /// `stream` and on the current stream of `to`, and the current stream of `to` waits for the copy.
  /// The copy uses the link between the cards (NVLink or PCIe) if they support it. During a
  /// capture, throws `DeviceError` for a copy between the host and a card or between two cards.
  void copy(void* dst, Device to, const void* src, Device from, int64_t bytes,
            Stream stream) override;

  Stream current_stream(Device device) override;
  void set_current_stream(Device device, Stream stream) override;
  Stream create_stream(Device device) override;
  void destroy_stream(Device device, Stream stream) override;
  /// While a stream of the device is captured, waits for the other streams that the backend
  /// created. Throws `DeviceError` if the calling thread captures it.
  void synchronize(Device device) override;

  Event create_event(Device device) override;
  void destroy_event(Device device, Event event) override;
  void record(Event event, Device device, Stream stream) override;
  /// During a capture, the host waits for an event that was recorded outside the capture.
  void wait(Event event, Device device, Stream stream) override;
  double elapsed_ms(Event start, Event stop, Device device) override;

  void begin_capture(Device device, Stream stream) override;
  void* end_capture(Device device, Stream stream) override;
  void replay(void* graph, Device device, Stream stream) override;
  /// If a stream of the graph's card is being captured, the graph is destroyed when the last
  /// capture ends.
  void destroy_graph(void* graph) override;

  const uint64_t* random_base(Device device) override { return card(device).zero; }

  void set_cache_limit(Device device, int64_t bytes) override;
  void record_stream(void* memory, Device device, Stream stream) override;
  bool capturing(Device device) const override { return card(device).allocator.capturing(); }
  std::string engine_id() override;
  std::unique_ptr<distributed::Engine> make_engine(Device device, int rank, int size,
                                                   const std::string& id) override;
  void begin_range(const char* name) override;
  void end_range() override;

 private:
  struct Card {
    explicit Card(int index);
    cudaStream_t resolve(Stream s) const {
      return s.handle ? static_cast<cudaStream_t>(s.handle) : stream;
    }

    CaptureGate gate;
    CachingAllocator allocator;
    cudaStream_t stream = nullptr;
    std::mutex streams_mutex;  ///< locked while a stream joins a capture
    std::set<cudaStream_t> streams;
    uint64_t* zero = nullptr;  ///< a word of device memory, 0: `random_base`
    std::atomic<int64_t> host_copies{0};
    std::atomic<uint64_t> peers_asked{
        0};  ///< bit i is set once `enable_peer_access` has run for card i
  };

  struct CapturedStep;  // the graph handle that `end_capture` returns

  Card& card(Device device) const;
  void wait_for_streams(Device device);
  void destroy_dropped_graphs(Device device);
  void copy_from_host(void* dst, Device to, const void* src, size_t bytes, cudaStream_t stream);
  void copy_between_cards(void* dst, Device to, const void* src, Device from, size_t bytes,
                          cudaStream_t stream);
  void enable_peer_access(Device on, Device other);

  const int device_count_;
  mutable std::mutex mutex_;
  std::mutex event_mutex_;
  std::set<void*> captured_events_;  ///< events that were last recorded in a capture, where CUDA
                                     ///< forbids queries
  std::mutex graph_mutex_;
  std::vector<std::unique_ptr<CapturedStep>> dropped_graphs_;  ///< not yet destroyed
  mutable std::array<std::atomic<Card*>, kMostCards> cards_{};
  HostMemory host_memory_;
};

}  // namespace sash::cuda
