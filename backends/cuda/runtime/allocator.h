#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "../../../core/backend/backend.h"
#include "../../../core/object_pool.h"
#include "capture_gate.h"

namespace sash::cuda {

/// Standard allocator on the small-object pool, for the containers of `CachingAllocator`.
template <class T>
struct ObjectPoolAllocator {
  using value_type = T;
  ObjectPoolAllocator() = default;
  template <class U>
  ObjectPoolAllocator(const ObjectPoolAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(allocate_object(n * sizeof(T))); }
  void deallocate(T* p, size_t n) noexcept { deallocate_object(p, n * sizeof(T)); }
  friend bool operator==(const ObjectPoolAllocator&, const ObjectPoolAllocator&) { return true; }
};

/// The allocator of one card. It caches freed blocks and reuses them on the stream that they were
/// allocated on, without waiting for the card. Thread-safe.
///
/// - Sizes are rounded up to 512 bytes. Statistics count the rounded sizes.
/// - Blocks up to 1 MiB are split from segments of 2 MiB, blocks below 10 MiB from segments of
///   20 MiB. A larger block has a segment to itself, rounded up to 2 MiB.
/// - Allocation takes the best fit and splits it. Freed neighbours are merged.
/// - Before that, a freed block waits for a request of the same size, which a training step makes
///   again and again. All that wait are merged before a new segment is made.
/// - Streams: a block that another stream uses (`record_stream`) is reused only after the work that
///   this stream had queued when the block was freed.
/// - Graphs: memory that is allocated or freed on a stream during its capture, or that the capture
///   uses (`record_stream`), belongs to the graph until `release`, so that replays can use it.
/// - Nothing is returned to the driver when the process ends.
class CachingAllocator {
 public:
  /// The memory of one captured graph.
  struct Graph;

  CachingAllocator(int card, CaptureGate& gate);
  ~CachingAllocator();

  /// Null for zero bytes. Aligned to 512 bytes. If the card has no memory left, returns the cache
  /// to the card and tries again, then throws `OutOfMemory`.
  void* allocate(int64_t bytes, cudaStream_t stream);
  /// Work already queued on `stream` may still use the memory.
  void deallocate(void* memory, cudaStream_t stream) noexcept;

  MemoryStats stats() const;
  void reset_peak();
  /// Waits for the card and returns to it every segment without a block in use. Does nothing while
  /// a graph is being captured.
  void empty_cache();
  /// Limits the cache to `bytes` of free memory. Segments with a block in use are not returned to
  /// the card, even above the limit.
  void set_limit(int64_t bytes);

  /// Declares that `stream`, or the graph that is captured on it, uses `memory`.
  void record_stream(void* memory, cudaStream_t stream);

  /// Begins to capture `stream`, and from the same moment separates the memory of the graph. If it
  /// throws, no capture has begun.
  void begin_capture(cudaStream_t stream);
  /// Ends the capture of `stream`. Null if none had begun. The graph's memory stays allocated until
  /// `release`. Sets `*recorded` and `*status` to the graph and the status of
  /// `cudaStreamEndCapture`.
  Graph* end_capture(cudaStream_t stream, cudaGraph_t* recorded, cudaError_t* status);
  /// Call after the graph is destroyed and its work is done. Its memory goes to the stream `heir`.
  void release(Graph* graph, cudaStream_t heir);
  /// Whether `stream` is being captured.
  bool capturing(cudaStream_t stream) const;
  /// Whether any stream is being captured.
  bool capturing() const { return captures_.load(std::memory_order_acquire) > 0; }
  /// Call before `stream`, which must be idle, is destroyed. Its memory goes to the stream `heir`.
  void retire(cudaStream_t stream, cudaStream_t heir);

 private:
  struct BlockPool;
  /// Another stream that uses a block.
  struct Use {
    cudaStream_t stream = nullptr;
    Use* next = nullptr;
  };
  /// A part of a segment. `before` and `after` are its neighbours in the segment.
  struct Block {
    char* memory = nullptr;
    int64_t bytes = 0;
    BlockPool* pool = nullptr;
    Block* before = nullptr;
    Block* after = nullptr;
    bool small = false;
    bool used = false;
    int64_t asked = 0;      ///< rounded size that it was allocated for
    bool waiting = false;   ///< in a bin: freed, but still `used`
    Block* next = nullptr;  ///< in the bin
    Use* uses = nullptr;
    int graphs = 0;  ///< number of unreleased graphs that use it
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
  };
  using FreeBlocks = std::set<Block*, BySize, ObjectPoolAllocator<Block*>>;
  /// Waiting blocks of one size.
  struct Bin {
    int64_t asked = 0;
    Block* first = nullptr;
  };
  /// The free blocks of one stream, or of one stream within a graph.
  struct BlockPool {
    static constexpr size_t kBins = 256;
    Bin& bin(int64_t asked) {
      const uint64_t mixed = static_cast<uint64_t>(asked) * uint64_t{0x9E3779B97F4A7C15};
      return bins[mixed >> 56];
    }

    std::array<Bin, kBins> bins{};
    cudaStream_t stream = nullptr;
    const Graph* graph = nullptr;
    FreeBlocks small, large;
  };
  using BlockPools = std::map<cudaStream_t, BlockPool>;

  Graph* graph_of(cudaStream_t stream) const;
  BlockPool& pool_of(cudaStream_t stream);
  Block* take_waiting(BlockPool& pool, int64_t asked);
  bool let_wait(Block* block, cudaStream_t stream);
  bool merge_waiting(BlockPool& pool);
  bool merge_waiting(Bin& bin);
  static BlockPool& pool_in(BlockPools& pools, cudaStream_t stream, const Graph* graph);
  Block* best_fit(BlockPool& pool, int64_t bytes, bool small);
  Block* new_segment(BlockPool& pool, int64_t bytes, bool small);
  void split(Block* block, int64_t bytes);
  void rehome(Block* block, cudaStream_t stream);
  Block* put_back(Block* block);
  static void drop_uses(Block* block, const cudaStream_t* only);
  static Block* merged(Block* first, Block* second);
  static FreeBlocks& free_blocks(const Block* block);
  void move_blocks(BlockPool& from, BlockPool& to);
  void free_segments(FreeBlocks& blocks, int64_t most_cached);
  void trim(int64_t most_cached);
  [[noreturn]] void throw_out_of_memory(int64_t asked) const;

  const int card_;
  CaptureGate& gate_;
  mutable std::mutex mutex_;
  BlockPools pools_;
  std::unordered_map<void*, Block*, std::hash<void*>, std::equal_to<void*>,
                     ObjectPoolAllocator<std::pair<void* const, Block*>>>
      used_;
  std::vector<std::unique_ptr<Graph>> capturing_, captured_;
  std::atomic<int> captures_{0};
  int64_t reserved_ = 0;
  int64_t limit_ = kNoCacheLimit;
  MemoryStats stats_;
};

}  // namespace sash::cuda
