#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "../../../core/backend/backend.h"

namespace sash::cuda {

/// Page-locked host memory for asynchronous copies; every card can read it. Thread-safe.
///
/// - Freed blocks are cached by size. A block is reused after the copies queued from it are done.
/// - The limit of the cache is twice the highest use plus 64 MiB, or what `set_limit` set.
/// - Sizes are rounded up to a power of two of at least 4096 bytes; above 1 MiB, to whole MiB.
///   Statistics count the rounded sizes.
/// - Nothing is returned to the system when the process ends.
class HostMemory {
 public:
  /// Null for zero bytes. Aligned to 4096 bytes. Throws `OutOfMemory` if the host has no memory
  /// even after idle blocks were returned to it.
  void* allocate(int64_t bytes);
  void deallocate(void* memory) noexcept;

  /// Call after a copy from `memory` was queued on `stream` of `card`. Returns false and does
  /// nothing if `memory` is not in a block in use.
  bool queued(const void* memory, int card, cudaStream_t stream);

  /// Adds its `pinned`, `pinned_cached` and `system_allocations` to `stats`.
  void add_to(MemoryStats& stats) const;
  /// Returns to the system the blocks that are neither in use nor the source of a copy.
  void empty_cache();
  /// Limits the cache to `bytes` of free memory.
  void set_limit(int64_t bytes);

 private:
  /// A copy in progress; `event` follows it in `stream`. At most one per stream.
  struct Copy {
    int card = 0;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
  };
  struct Block {
    char* memory = nullptr;
    int64_t bytes = 0;
    std::vector<Copy> copies;
  };

  Block* find(const void* memory) const;
  Block* idle_block(int64_t bytes);
  int64_t limit() const;
  void trim(int64_t most_cached);
  static bool done(const Copy& copy);
  static bool done(const Block& block);

  mutable std::mutex mutex_;
  std::map<const void*, Block*, std::less<>> used_;  // by address
  std::multimap<int64_t, Block*> free_;              // by size; equal sizes: first freed first
  int64_t pinned_ = 0, most_pinned_ = 0;
  int64_t cached_ = 0;
  int64_t limit_ = kNoCacheLimit;
  int64_t system_allocations_ = 0;
};

}  // namespace sash::cuda
