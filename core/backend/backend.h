#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "../export.h"
#include "device.h"

namespace sash::distributed {
class Engine;
}

namespace sash {

/// An in-order queue of work on a device; null is the backend's default.
struct Stream {
  void* handle = nullptr;
  friend bool operator==(const Stream&, const Stream&) = default;
};

/// A point in a stream; null until made by `Backend::create_event`.
struct Event {
  void* handle = nullptr;
};

/// Bytes handed out by a backend's allocator on one device.
struct MemoryStats {
  int64_t current = 0;             ///< in use now
  int64_t peak = 0;                ///< most ever in use since the last reset
  int64_t cached = 0;              ///< held for reuse
  int64_t system_allocations = 0;  ///< requests passed on to the system or driver
  int64_t host_copies = 0;         ///< copies between host and device
  int64_t pinned = 0;              ///< page-locked host memory in use, for all devices of a kind
  int64_t pinned_cached = 0;       ///< the same, held for reuse
  int64_t cache_limit = 0;         ///< most of `cached` that is kept: `set_cache_limit`
  int64_t masks = 0;    ///< part of `current`: compiled masks kept, for all devices of a kind
  int64_t objects = 0;  ///< host memory of the small-object pool, in use or not, for all devices
};

/// `set_cache_limit` of a device whose limit was not set.
inline constexpr int64_t kNoCacheLimit = std::numeric_limits<int64_t>::max();

/// The resources of a kind of device: memory, streams, events. Ops are not part of it; they are in
/// `Kernel` slots. One object serves all devices of its type. Any thread may use it at any time.
class SASH_API Backend {
 public:
  virtual ~Backend();

  virtual DeviceType type() const = 0;
  virtual int device_count() const = 0;
  /// One line for humans: the processor's or card's name.
  virtual std::string description(Device device) const = 0;

  /// Uninitialised memory, aligned to 64 bytes (256 on CUDA); null for zero bytes. `OutOfMemory` if
  /// there is no room.
  virtual void* allocate(int64_t bytes, Device device, Stream stream) = 0;
  /// `bytes` is what `allocate` was asked for. Work already queued on `stream` may still use the
  /// memory.
  virtual void deallocate(void* memory, int64_t bytes, Device device, Stream stream) noexcept = 0;
  virtual MemoryStats memory_stats(Device device) const = 0;
  virtual void reset_peak(Device device) = 0;
  /// Gives cached memory back to the system.
  virtual void empty_cache(Device device) = 0;

  /// Page-locked host memory: copies from it to these devices run asynchronously. Aligned and
  /// counted as by `allocate`. Throws `OutOfMemory`, and `NotImplemented` if the backend has none.
  virtual void* allocate_host(int64_t bytes);
  /// `bytes` is what `allocate_host` was asked for. Copies already queued may still read the
  /// memory.
  virtual void deallocate_host(void* memory, int64_t bytes) noexcept;

  /// Copies within a device, or between it and the host (`to` or `from` is then the CPU). A copy to
  /// the host is complete when this returns. A copy from the host may still read `src` if that is
  /// memory of `allocate_host`.
  virtual void copy(void* dst, Device to, const void* src, Device from, int64_t bytes,
                    Stream stream) = 0;

  virtual Stream current_stream(Device device) = 0;
  virtual void set_current_stream(Device device, Stream stream) = 0;
  virtual Stream create_stream(Device device) = 0;
  virtual void destroy_stream(Device device, Stream stream) = 0;
  /// Waits for all work on the device, and throws what it reported.
  virtual void synchronize(Device device) = 0;

  virtual Event create_event(Device device) = 0;
  virtual void destroy_event(Device device, Event event) = 0;
  virtual void record(Event event, Device device, Stream stream) = 0;
  /// What is queued on `stream` from now on runs after what `event` recorded.
  virtual void wait(Event event, Device device, Stream stream) = 0;
  /// Milliseconds between two recorded events; waits for the second.
  virtual double elapsed_ms(Event start, Event stop, Device device) = 0;

  /// Records what is queued on `stream` between begin and end as one replayable graph.
  virtual void begin_capture(Device device, Stream stream) = 0;
  virtual void* end_capture(Device device, Stream stream) = 0;
  virtual void replay(void* graph, Device device, Stream stream) = 0;
  virtual void destroy_graph(void* graph) = 0;

  /// A zero that `device` can read: `PhiloxState::base` outside captured steps. The default is in
  /// host memory.
  virtual const uint64_t* random_base(Device device);

  /// Keeps at most `bytes` for reuse from now on, and frees the rest.
  virtual void set_cache_limit(Device device, int64_t bytes) = 0;
  /// Work on `stream` (in a capture, the graph) uses `memory` too: once deallocated, `memory` is
  /// not reused before this work is done. The default, for backends of one stream, does nothing.
  virtual void record_stream(void* memory, Device device, Stream stream);
  /// Whether work on some stream of `device` is being captured. The default says no.
  virtual bool capturing(Device device) const;
  /// What rank 0 sends to all ranks for `make_engine`, such as NCCL's id. The default is empty.
  virtual std::string engine_id();
  /// Collectives on `device` among `size` processes, of which this is number `rank`. All call it
  /// together. `NotImplemented` that says what is missing.
  virtual std::unique_ptr<distributed::Engine> make_engine(Device device, int rank, int size,
                                                           const std::string& id);
  /// A range of this thread's time line, for the vendor's tools (NVTX); ranges nest. The default
  /// does nothing.
  virtual void begin_range(const char* name);
  virtual void end_range();
};

/// The backend of `type`. CUDA is opened on first use: a plug-in library beside libsash, or at
/// `SASH_CUDA_LIBRARY`. Throws `DeviceError` that says why there is none.
SASH_API Backend& backend(DeviceType type);

/// The same, and `DeviceError` unless it has this device.
SASH_API Backend& backend(Device device);

/// The same, or null where there is none; `reason`, if given, receives why.
SASH_API Backend* try_backend(DeviceType type, std::string* reason = nullptr);

/// For backends, from their registration function: installs `backend` for its type.
SASH_API void register_backend(std::unique_ptr<Backend> backend);

/// Incremented whenever plug-ins built against older headers stop being compatible.
inline constexpr uint32_t kPluginAbiVersion = 8;

/// Signature of `sash_register_cuda`, the one function that `libsash_cuda` exports. It fills slots
/// and registers the backend. Returns null, or the reason why the device cannot be used.
using RegisterPlugin = const char* (*)(uint32_t abi_version);

/// Waits for all work on `device`.
SASH_API void synchronize(Device device);
SASH_API MemoryStats memory_stats(Device device);
SASH_API void reset_peak_memory(Device device);
SASH_API void empty_cache(Device device);

/// Sets how many bytes `device` keeps at most for reuse (`MemoryStats::cached`). Memory freed above
/// the limit goes back to the system, so a limit below the need of a training step costs time.
/// `kNoCacheLimit`, the default, leaves the choice to the backend: the CPU's keeps up to 1.5 times
/// its peak and 32 MiB, used memory included; CUDA's keeps everything. A segment is kept as long as
/// a part of it is in use, whatever the limit. On CUDA the limit also holds for page-locked memory
/// (`pinned_cached`). `ValueError` if `bytes` is negative.
SASH_API void set_cache_limit(Device device, int64_t bytes);

/// Lets CUDA round the factors of float32 matrix products to TF32 (10 bits of mantissa), which is
/// several times faster. Process-wide, off by default.
SASH_API void set_tf32_allowed(bool allowed);
SASH_API bool tf32_allowed();

namespace detail {
/// `MemoryStats::masks` of a kind of device; kept up to date by the cache of compiled masks.
SASH_API std::atomic<int64_t>& mask_bytes(DeviceType type);
}  // namespace detail

}  // namespace sash
