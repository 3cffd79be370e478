#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "../../../core/backend.h"

namespace sash::cpu {

/// Memory of the CPU backend: freed blocks are kept by size class and handed out again, so that a
/// steady training step asks the system for nothing. Thread-safe.
///
/// Sizes are rounded up to a multiple of 64 bytes below 1 KiB, and to one of eight classes per
/// power of two above, which wastes at most an eighth. Blocks are aligned to 64 bytes; from 4 MiB
/// on they are asked to be backed by huge pages. Statistics count the rounded sizes.
///
/// A block serves its own class alone while all that is held stays below a limit: one and a half
/// times the peak since the last `empty_cache`, and 32 MiB. Past that, free neighbours are merged
/// and cut to new sizes, and where that does not do, what is free goes back to the system before
/// more is asked for. A limit that was set bounds what is free instead. With `SASH_NO_POOL`
/// (sanitizer builds) nothing is rounded or kept.
class CachingAllocator {
 public:
  /// Null for zero bytes. `OutOfMemory` if the system refuses after the cache was given back.
  void* allocate(int64_t bytes);
  /// `bytes` as asked for.
  void deallocate(void* memory, int64_t bytes) noexcept;

  MemoryStats stats() const;
  void reset_peak();
  /// Gives back to the system what it lent in one piece and is free.
  void empty_cache();
  /// Holds at most `bytes` for reuse.
  void set_limit(int64_t bytes);

 private:
  /// Stands in front of the memory. Neighbours come from one piece of the system's memory, a
  /// segment.
  struct alignas(64) Block {
    int64_t bytes;  ///< of the memory behind
    Block* before;
    Block* after;
    Block* next_free;
    Block* older;  ///< of first blocks: the segments' order
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
  Block* from_system(const SizeClass& size, int64_t asked);
  Block* cut(const SizeClass& size);
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
  int64_t limit_ = kNoCacheLimit;
  int64_t next_tidy_ = kNoCacheLimit;  // bytes of cache from which on tidying is worth a try
  int64_t most_used_ = 0;
  MemoryStats stats_;
};

}  // namespace sash::cpu
