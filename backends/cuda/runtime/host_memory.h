#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "../../../core/backend.h"

namespace sash::cuda {

/// Page-locked host memory, for copies that the host does not wait for; every card reads it. Freed
/// blocks are kept by size and handed out again once the copies that were queued from them are
/// done, as long as they are within a limit: twice what was ever in use and 64 MiB, or the one that
/// was set. Thread-safe. Sizes are rounded up to a power of two, from 1 MiB on to whole MiB;
/// statistics count the rounded sizes. Nothing is given back when the process ends.
class HostMemory {
 public:
  /// Null for zero bytes; aligned to 4096 bytes. `OutOfMemory` if the host has no room even after
  /// idle blocks were given back.
  void* allocate(int64_t bytes);
  void deallocate(void* memory) noexcept;

  /// A copy from `memory` was queued on `stream`, a stream of `card`. False, and nothing is done,
  /// if `memory` is in none of the blocks in use.
  bool queued(const void* memory, int card, cudaStream_t stream);

  /// Adds `pinned`, `pinned_cached` and `system_allocations`.
  void add_to(MemoryStats& stats) const;
  /// Gives back the blocks that are neither in use nor being copied from.
  void empty_cache();
  /// Holds at most `bytes` for reuse.
  void set_limit(int64_t bytes);

 private:
  /// Passes when a copy is done. One event for each stream with a copy under way.
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
  std::map<const void*, Block*, std::less<>> used_;  // by where they start
  std::multimap<int64_t, Block*> free_;              // of one size, the longest freed comes first
  int64_t pinned_ = 0, most_pinned_ = 0;
  int64_t cached_ = 0;
  int64_t limit_ = kNoCacheLimit;
  int64_t system_allocations_ = 0;
};

}  // namespace sash::cuda
