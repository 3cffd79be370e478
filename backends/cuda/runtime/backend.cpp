#include "backend.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "../../../core/error.h"
#include "../../../core/readable.h"
#include "check.h"
#include "index_flag.h"

namespace sash::cuda {
namespace {

thread_local std::array<void*, CudaBackend::kMostCards> current{};

cudaEvent_t native(Event event) { return static_cast<cudaEvent_t>(event.handle); }

}  // namespace

struct CudaBackend::CapturedStep {
  cudaGraphExec_t executable = nullptr;
  CachingAllocator::Graph* memory = nullptr;
  Device device;
};

CudaBackend::Card::Card(int index) : allocator(index, gate) {
  index_flag(index);  // now, because it cannot be allocated during a capture
  const CardGuard guard(index);
  SASH_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  streams.insert(stream);
  SASH_CUDA_CHECK(cudaMalloc(&zero, sizeof(*zero)));
  SASH_CUDA_CHECK(cudaMemsetAsync(zero, 0, sizeof(*zero), stream));
  SASH_CUDA_CHECK(cudaStreamSynchronize(stream));
}

CudaBackend::CudaBackend(int device_count) : device_count_(std::min(device_count, kMostCards)) {}
CudaBackend::~CudaBackend() = default;

CudaBackend::Card& CudaBackend::card(Device device) const {
  if (device.index < 0 || device.index >= device_count_) {
    throw DeviceError("cuda", "a CUDA device below " + std::to_string(device_count_),
                      to_string(device));
  }
  std::atomic<Card*>& place = cards_[static_cast<size_t>(device.index)];
  if (Card* found = place.load(std::memory_order_acquire)) return *found;
  const std::lock_guard lock(mutex_);
  if (!place.load(std::memory_order_relaxed)) {
    // Never deleted: tensors may outlive static destruction.
    place.store(new Card(device.index), std::memory_order_release);
  }
  return *place.load(std::memory_order_relaxed);
}

std::string CudaBackend::description(Device device) const {
  card(device);
  cudaDeviceProp properties{};
  SASH_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
  const double memory = static_cast<double>(properties.totalGlobalMem) / (1024.0 * 1024.0 * 1024.0);
  return std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) +
         " multiprocessors, " + to_text(memory, std::chars_format::fixed, 1) + " GiB";
}

void* CudaBackend::allocate(int64_t bytes, Device device, Stream stream) {
  Card& on = card(device);
  return on.allocator.allocate(bytes, on.resolve(stream));
}

void CudaBackend::deallocate(void* memory, int64_t, Device device, Stream stream) noexcept {
  Card& on = card(device);
  on.allocator.deallocate(memory, on.resolve(stream));
}

MemoryStats CudaBackend::memory_stats(Device device) const {
  Card& on = card(device);
  MemoryStats stats = on.allocator.stats();
  stats.host_copies = on.host_copies.load(std::memory_order_relaxed);
  host_memory_.add_to(stats);
  return stats;
}

void CudaBackend::reset_peak(Device device) { card(device).allocator.reset_peak(); }

void CudaBackend::empty_cache(Device device) {
  Card& on = card(device);
  on.allocator.empty_cache();
  if (!on.allocator.capturing(on.resolve(current_stream(device)))) host_memory_.empty_cache();
}

void CudaBackend::set_cache_limit(Device device, int64_t bytes) {
  card(device).allocator.set_limit(bytes);
  host_memory_.set_limit(bytes);
}

void CudaBackend::record_stream(void* memory, Device device, Stream stream) {
  Card& on = card(device);
  on.allocator.record_stream(memory, on.resolve(stream));
}

void CudaBackend::copy(void* dst, Device to, const void* src, Device from, int64_t bytes,
                       Stream stream) {
  if (bytes <= 0) return;
  const Device side = from.is_cuda() ? from : to;
  Card& on = card(side);
  const CardGuard guard(side.index);
  const cudaStream_t queue = on.resolve(stream);
  const auto size = static_cast<size_t>(bytes);
  if (to == from) {
    SASH_CUDA_CHECK(cudaMemcpyAsync(dst, src, size, cudaMemcpyDeviceToDevice, queue));
    return;
  }
  const auto recorded = [&](Device end, Stream used) {
    return card(end).allocator.capturing(card(end).resolve(used));
  };
  const bool here = recorded(side, stream);
  if (here || (to != side && to.is_cuda() && recorded(to, current_stream(to)))) {
    throw DeviceError("copy",
                      "work that stays on " + to_string(here ? side : to) + " during a capture",
                      "a copy from " + to_string(from) + " to " + to_string(to));
  }
  if (to.is_cuda() && from.is_cuda()) return copy_between_cards(dst, to, src, from, size, queue);
  on.host_copies.fetch_add(1, std::memory_order_relaxed);
  if (to.is_cuda()) return copy_from_host(dst, to, src, size, queue);
  SASH_CUDA_CHECK(cudaMemcpyAsync(dst, src, size, cudaMemcpyDefault, queue));
  SASH_CUDA_CHECK(cudaStreamSynchronize(queue));
  throw_index_error(side.index);
}

void CudaBackend::copy_from_host(void* dst, Device to, const void* src, size_t bytes,
                                 cudaStream_t stream) {
  // From pageable memory, this returns after the source has been read.
  SASH_CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream));
  if (host_memory_.queued(src, to.index, stream)) return;
  cudaPointerAttributes source{};
  SASH_CUDA_CHECK(cudaPointerGetAttributes(&source, src));
  // Page-locked memory that is not ours: its owner cannot know when the copy is done.
  if (source.type != cudaMemoryTypeUnregistered) SASH_CUDA_CHECK(cudaStreamSynchronize(stream));
}

/// The copy starts after the work queued on both cards, since `dst` may still be in use, and both
/// streams go on behind it: `src` may be overwritten or freed, and `dst` read, without a wait.
void CudaBackend::copy_between_cards(void* dst, Device to, const void* src, Device from,
                                     size_t bytes, cudaStream_t stream) {
  const cudaStream_t receiver = card(to).resolve(current_stream(to));
  enable_peer_access(from, to);
  enable_peer_access(to, from);
  wait_stream(stream, receiver, to.index);
  SASH_CUDA_CHECK(cudaMemcpyPeerAsync(dst, to.index, src, from.index, bytes, stream));
  wait_stream(receiver, stream, from.index);
}

/// Once a pair: lets `on` use the memory of `other`, so that copies take the link between them
/// rather than the host's memory. It holds for everything that `cudaMalloc` gave or will give.
void CudaBackend::enable_peer_access(Device on, Device other) {
  std::atomic<uint64_t>& asked = card(on).peers_asked;
  const uint64_t bit = uint64_t{1} << other.index;
  if (asked.load(std::memory_order_acquire) & bit) return;
  const CardGuard guard(on.index);
  const RelaxedCapture relaxed;  // another stream of this thread may be recorded
  int can = 0;
  SASH_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, on.index, other.index));
  const cudaError_t enabled = can ? cudaDeviceEnablePeerAccess(other.index, 0) : cudaSuccess;
  // Already by another thread or library; or too many cards, whose copies take the host's memory.
  if (enabled == cudaErrorPeerAccessAlreadyEnabled || enabled == cudaErrorTooManyPeers) {
    cudaGetLastError();
  } else {
    SASH_CUDA_CHECK(enabled);
  }
  asked.fetch_or(bit, std::memory_order_release);
}

Stream CudaBackend::current_stream(Device device) {
  Card& on = card(device);
  return {on.resolve({current[static_cast<size_t>(device.index)]})};
}

void CudaBackend::set_current_stream(Device device, Stream stream) {
  card(device);
  current[static_cast<size_t>(device.index)] = stream.handle;
}

Stream CudaBackend::create_stream(Device device) {
  Card& on = card(device);
  const CardGuard guard(device.index);
  cudaStream_t stream = nullptr;
  SASH_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const std::lock_guard lock(on.streams_mutex);
  on.streams.insert(stream);
  return {stream};
}

void CudaBackend::destroy_stream(Device device, Stream stream) {
  Card& on = card(device);
  const cudaStream_t handle = on.resolve(stream);
  if (handle == on.stream) return;
  const CardGuard guard(device.index);
  SASH_CUDA_CHECK(cudaStreamSynchronize(handle));
  on.allocator.retire(handle, on.stream);
  const std::lock_guard lock(on.streams_mutex);
  on.streams.erase(handle);
  void*& mine = current[static_cast<size_t>(device.index)];
  if (mine == stream.handle) mine = nullptr;
  SASH_CUDA_CHECK(cudaStreamDestroy(handle));
}

void CudaBackend::synchronize(Device device) {
  Card& on = card(device);
  const CardGuard guard(device.index);
  if (!on.gate.wait_for_card()) wait_for_streams(device);
  throw_index_error(device.index);
}

/// Waits for all streams except captured streams.
void CudaBackend::wait_for_streams(Device device) {
  Card& on = card(device);
  if (on.allocator.capturing(on.resolve(current_stream(device)))) {
    throw DeviceError("synchronize", "no wait for " + to_string(device) + " during a capture",
                      "one");
  }
  std::vector<Event> ends;
  {
    const std::lock_guard lock(on.streams_mutex);
    for (const cudaStream_t stream : on.streams) {
      if (on.allocator.capturing(stream)) continue;
      ends.push_back(create_event(device));
      SASH_CUDA_CHECK(cudaEventRecord(native(ends.back()), stream));
    }
  }
  for (const Event end : ends) {
    SASH_CUDA_CHECK(cudaEventSynchronize(native(end)));
    destroy_event(device, end);
  }
}

Event CudaBackend::create_event(Device device) {
  card(device);
  const CardGuard guard(device.index);
  cudaEvent_t event = nullptr;
  SASH_CUDA_CHECK(cudaEventCreate(&event));
  return {event};
}

void CudaBackend::destroy_event(Device, Event event) {
  if (!event.handle) return;
  {
    const std::lock_guard lock(event_mutex_);
    captured_events_.erase(event.handle);
  }
  SASH_CUDA_CHECK(cudaEventDestroy(native(event)));
}

void CudaBackend::record(Event event, Device device, Stream stream) {
  Card& on = card(device);
  const cudaStream_t queue = on.resolve(stream);
  const CardGuard guard(device.index);
  SASH_CUDA_CHECK(cudaEventRecord(native(event), queue));
  const bool captured = on.allocator.capturing(queue);
  const std::lock_guard lock(event_mutex_);
  if (captured) {
    captured_events_.insert(event.handle);
  } else {
    captured_events_.erase(event.handle);
  }
}

void CudaBackend::wait(Event event, Device device, Stream stream) {
  Card& on = card(device);
  const cudaStream_t queue = on.resolve(stream);
  const CardGuard guard(device.index);
  const bool captured = [&] {
    const std::lock_guard lock(event_mutex_);
    return captured_events_.count(event.handle) > 0;
  }();
  if (!captured && on.allocator.capturing(queue)) {
    // Of work outside the graph, which replays cannot wait for.
    const RelaxedCapture relaxed;
    return SASH_CUDA_CHECK(cudaEventSynchronize(native(event)));
  }
  std::unique_lock<std::mutex> lock;
  if (captured) lock = std::unique_lock(on.streams_mutex);  // `queue` may join the capture
  SASH_CUDA_CHECK(cudaStreamWaitEvent(queue, native(event), 0));
}

double CudaBackend::elapsed_ms(Event start, Event stop, Device device) {
  const CardGuard guard(device.index);
  float elapsed = 0;
  SASH_CUDA_CHECK(cudaEventSynchronize(native(stop)));
  SASH_CUDA_CHECK(cudaEventElapsedTime(&elapsed, native(start), native(stop)));
  return static_cast<double>(elapsed);
}

void CudaBackend::begin_capture(Device device, Stream stream) {
  Card& on = card(device);
  const CardGuard guard(device.index);
  const cudaStream_t queue = on.resolve(stream);
  const std::scoped_lock lock(graph_mutex_, on.streams_mutex);
  on.allocator.begin_capture(queue);
}

void* CudaBackend::end_capture(Device device, Stream stream) {
  Card& on = card(device);
  std::optional<CardGuard> guard;
  std::exception_ptr failure;  // in spite of which the recording ends
  try {
    guard.emplace(device.index);
  } catch (...) {
    failure = std::current_exception();
  }
  const cudaStream_t queue = on.resolve(stream);
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaError_t ended = cudaSuccess;
  CachingAllocator::Graph* memory = on.allocator.end_capture(queue, &recorded, &ended);
  cudaError_t made = ended;
  if (ended == cudaSuccess) {
    made =
        failure || fails_now() ? cudaErrorUnknown : cudaGraphInstantiate(&executable, recorded, 0);
  }
  if (recorded) cudaGraphDestroy(recorded);
  if (made != cudaSuccess && memory) on.allocator.release(memory, on.stream);
  if (failure) std::rethrow_exception(failure);
  check(ended, "cudaStreamEndCapture", __FILE__, __LINE__);
  check(made, "cudaGraphInstantiate", __FILE__, __LINE__);
  auto step = std::make_unique<CapturedStep>(CapturedStep{executable, memory, device});
  destroy_dropped_graphs(device);
  return step.release();
}

void CudaBackend::replay(void* graph, Device device, Stream stream) {
  const cudaStream_t queue = card(device).resolve(stream);
  const CardGuard guard(device.index);
  SASH_CUDA_CHECK(cudaGraphLaunch(static_cast<CapturedStep*>(graph)->executable, queue));
}

void CudaBackend::begin_range(const char* name) { nvtxRangePushA(name); }
void CudaBackend::end_range() { nvtxRangePop(); }

void CudaBackend::destroy_graph(void* graph) {
  if (!graph) return;
  std::unique_ptr<CapturedStep> step(static_cast<CapturedStep*>(graph));
  const Device device = step->device;
  {
    const std::lock_guard lock(graph_mutex_);
    dropped_graphs_.push_back(std::move(step));
  }
  destroy_dropped_graphs(device);
}

/// Not during a capture: when the last one ends.
void CudaBackend::destroy_dropped_graphs(Device device) {
  Card& on = card(device);
  const CardGuard guard(device.index);
  const std::lock_guard lock(graph_mutex_);
  const auto here = [&](const auto& step) { return step->device == device; };
  if (std::none_of(dropped_graphs_.begin(), dropped_graphs_.end(), here)) return;
  if (!on.gate.wait_for_card()) return;  // the graphs' memory will be reused
  for (const auto& step : dropped_graphs_) {
    if (!here(step)) continue;
    SASH_CUDA_CHECK(cudaGraphExecDestroy(step->executable));
    on.allocator.release(step->memory, on.stream);
  }
  std::erase_if(dropped_graphs_, here);
}

}  // namespace sash::cuda
