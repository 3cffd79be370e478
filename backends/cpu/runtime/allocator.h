#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "../../../core/backend/backend.h"

namespace sash::cpu {

/// The allocator of the CPU backend. Freed blocks are kept by size class and reused, so that a
/// steady training step allocates nothing from the system. Thread-safe.
///
/// Sizes up to 1 KiB are rounded up to a multiple of 64 bytes. Larger sizes are rounded up to one
/// of eight classes per power of two, which wastes at most 1/8. Blocks are aligned to 64 bytes.
/// From 4 MiB on, huge pages are requested. Blocks from 16 KiB on share segments of 16 MiB, which
/// have huge pages too, unless `set_limit` was called. Statistics count the rounded sizes, even if
/// a reused block is a few bytes larger.
///
/// All memory from the system, in use or free, has a limit: 1.5 times the peak use since the last
/// `empty_cache`, plus 32 MiB. Below the limit, a block is reused only for its own size class. At
/// the limit, free neighbours are merged and split to new sizes. If that is not enough, free memory
/// is returned to the system before more is allocated. One shared segment may exceed the limit.
/// After `set_limit`, the limit is one of free memory.
///
/// With `SASH_NO_MEMORY_REUSE` (sanitizer builds) sizes are not rounded and nothing is kept.
class CachingAllocator {
 public:
  /// Returns null for zero bytes. Throws `OutOfMemory` if the system has no memory even after the
  /// cache was returned to it.
  void* allocate(int64_t bytes);
  /// `bytes` is the size passed to `allocate`.
  void deallocate(void* memory, int64_t bytes) noexcept;

  MemoryStats stats() const;
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak = stats_.current;
  }
  /// Returns to the system all segments without a block in use.
  void empty_cache();
  /// Keeps at most `bytes` of free memory.
  void set_limit(int64_t bytes);

 private:
  /// Header before each block's memory. `before` and `after` are its neighbours in the same
  /// segment, a single allocation from the system.
  struct alignas(64) Block {
    int64_t bytes;  ///< without the header
    Block* before;
    Block* after;
    Block* next_free;
    Block* older;  ///< list of segments; used in the first block of a segment only
    Block* newer;
    bool used;
  };
  struct SizeClass {
    size_t index;
    int64_t bytes;
  };
  static constexpr size_t kSmallClasses = 16;
  static constexpr size_t kClasses = kSmallClasses + 8 * 30;

  static SizeClass size_class(int64_t bytes);
  Block* pop(size_t index);
  void push(Block* block);
  Block* new_block(const SizeClass& size, int64_t asked);
  Block* from_rest(const SizeClass& size);
  Block* from_system(const SizeClass& size, int64_t asked);
  Block* new_segment(void* memory, int64_t bytes);
  Block* cut(const SizeClass& size);
  static Block* split(Block* block, int64_t bytes);
  void merge(Block* first);
  void tidy(int64_t most_cached) noexcept;
  void give_back(Block* segment) noexcept;
  void keep_to_limit() noexcept;
  int64_t slack() const;
  void count(int64_t bytes);

  mutable std::mutex mutex_;
  std::array<Block*, kClasses> free_{};
  Block* oldest_ = nullptr;
  Block* newest_ = nullptr;
  Block* rest_ = nullptr;  ///< the unused end of a shared segment
  int64_t limit_ = kNoCacheLimit;
  int64_t next_tidy_ = kNoCacheLimit;  // call `keep_to_limit` above this many cached bytes
  int64_t most_used_ = 0;
  MemoryStats stats_;
};

}  // namespace sash::cpu
