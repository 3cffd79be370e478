#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "../../core/backend.h"

namespace sash::cpu {

/// Memory of the CPU backend: freed blocks are kept by size class and handed out again, so that a
/// steady training step asks the system for nothing. Thread-safe.
///
/// Sizes are rounded up to a multiple of 64 bytes below 1 KiB, and to one of eight classes per
/// power of two above, which wastes at most an eighth. Blocks are aligned to 64 bytes; from 4 MiB
/// on to 2 MiB, and asked to be backed by huge pages. Statistics count the rounded sizes.
/// With `SASH_NO_POOL` (sanitizer builds) nothing is rounded or kept.
class CachingAllocator {
 public:
  /// Null for zero bytes. `OutOfMemory` if the system refuses after the cache was given back.
  void* allocate(int64_t bytes);
  /// `bytes` as asked for.
  void deallocate(void* memory, int64_t bytes) noexcept;

  MemoryStats stats() const;
  void reset_peak();
  /// Gives every kept block back to the system.
  void empty_cache();

 private:
  struct FreeBlock {
    FreeBlock* next;
  };
  struct SizeClass {
    size_t index;
    int64_t bytes;
  };
  static constexpr size_t kSmallClasses = 16;
  static constexpr size_t kClasses = kSmallClasses + 8 * 30;

  static SizeClass size_class(int64_t bytes);
  void* take_cached(const SizeClass& size);
  void* from_system(const SizeClass& size, int64_t asked);
  void count(int64_t bytes);
  void empty_cache_locked() noexcept;

  mutable std::mutex mutex_;
  std::array<FreeBlock*, kClasses> free_{};
  std::array<int64_t, kClasses> block_bytes_{};
  MemoryStats stats_;
};

}  // namespace sash::cpu
