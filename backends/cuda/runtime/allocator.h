#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "../../../core/backend.h"
#include "../../../core/pool.h"

namespace sash::cuda {

/// Lets the allocator's own books live in the small-object pool, off the system's heap.
template <class T>
struct Pooled {
  using value_type = T;
  Pooled() = default;
  template <class U>
  Pooled(const Pooled<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(pool_allocate(n * sizeof(T))); }
  void deallocate(T* p, size_t n) noexcept { pool_deallocate(p, n * sizeof(T)); }
  friend bool operator==(const Pooled&, const Pooled&) { return true; }
};

/// Memory of one card. Freed blocks are kept and handed out again in the order of the stream they
/// were allocated on, without waiting for the card. Thread-safe.
///
/// Sizes are rounded up to 512 bytes. Blocks up to 1 MiB are cut from segments of 2 MiB, those
/// below 10 MiB from segments of 20 MiB, larger ones get segments of their own, in steps of 2 MiB.
/// The best fit is split, and freed neighbours are merged. What is allocated or freed on a stream
/// while it is being captured belongs to the graph until that is released, so that a replay always
/// finds its memory; so does what a capture is said to use. Memory that another stream is said to
/// use is handed out again after what that stream had queued when it was freed. Nothing is given
/// back when the process ends. Statistics count the rounded sizes.
class CachingAllocator {
 public:
  /// The memory of one captured graph.
  struct Graph;

  explicit CachingAllocator(int card);
  ~CachingAllocator();

  /// Null for zero bytes; aligned to 512 bytes. `OutOfMemory` if the card has no room even after
  /// the cache was given back.
  void* allocate(int64_t bytes, cudaStream_t stream);
  /// Work already queued on `stream` may still use the memory.
  void deallocate(void* memory, cudaStream_t stream) noexcept;

  MemoryStats stats() const;
  void reset_peak();
  /// Waits for the card and gives every segment without a block in use back to it; does nothing
  /// while a graph is being captured.
  void empty_cache();
  /// Holds at most `bytes` for reuse, but for pieces of segments with a block in use.
  void set_limit(int64_t bytes);

  /// `stream`, or the graph that is captured on it, uses `memory`.
  void record_stream(void* memory, cudaStream_t stream);

  /// Right after the capture of `stream` began.
  void begin_capture(cudaStream_t stream);
  /// After it ended; the memory is held until `release`.
  Graph* end_capture(cudaStream_t stream);
  /// The graph is gone and done: its memory serves `heir` from now on.
  void release(Graph* graph, cudaStream_t heir);
  /// Whether work queued on `stream` is being recorded rather than run.
  bool capturing(cudaStream_t stream) const;
  /// Whether work is being recorded on any stream.
  bool capturing() const { return captures_.load(std::memory_order_acquire) > 0; }
  /// Before `stream`, which is idle, is destroyed: its memory serves `heir` from now on.
  void retire(cudaStream_t stream, cudaStream_t heir);

 private:
  struct Pool;
  /// Another stream that uses a block.
  struct Use {
    cudaStream_t stream = nullptr;
    Use* next = nullptr;
  };
  /// A piece of a segment; `before` and `after` are its neighbours there.
  struct Block {
    char* memory = nullptr;
    int64_t bytes = 0;
    Pool* pool = nullptr;
    Block* before = nullptr;
    Block* after = nullptr;
    bool small = false;
    bool used = false;
    Use* uses = nullptr;
    int graphs = 0;  ///< that read it and are not released
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
  };
  using FreeBlocks = std::set<Block*, BySize, Pooled<Block*>>;
  /// The free blocks of one stream, or of one stream within a graph.
  struct Pool {
    cudaStream_t stream = nullptr;
    const Graph* graph = nullptr;
    FreeBlocks small, large;
  };
  using Pools = std::map<cudaStream_t, Pool>;

  Graph* graph_of(cudaStream_t stream) const;
  Pool& pool_of(cudaStream_t stream);
  static Pool& pool_in(Pools& pools, cudaStream_t stream, const Graph* graph);
  Block* best_fit(Pool& pool, int64_t bytes, bool small);
  Block* new_segment(Pool& pool, int64_t bytes, bool small);
  void split(Block* block, int64_t bytes);
  void rehome(Block* block, cudaStream_t stream);
  Block* put_back(Block* block);
  static void drop_uses(Block* block, const cudaStream_t* only);
  static Block* merged(Block* first, Block* second);
  static FreeBlocks& free_blocks(const Block* block);
  void move_blocks(Pool& from, Pool& to);
  void free_segments(FreeBlocks& blocks, int64_t most_cached);
  void trim(int64_t most_cached);
  [[noreturn]] void throw_out_of_memory(int64_t asked) const;

  const int card_;
  mutable std::mutex mutex_;
  Pools pools_;
  std::unordered_map<void*, Block*, std::hash<void*>, std::equal_to<void*>,
                     Pooled<std::pair<void* const, Block*>>>
      used_;
  std::vector<std::unique_ptr<Graph>> capturing_, captured_;
  std::atomic<int> captures_{0};
  int64_t reserved_ = 0;
  int64_t limit_ = kNoCacheLimit;
  MemoryStats stats_;
};

}  // namespace sash::cuda
