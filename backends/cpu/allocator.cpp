#include "allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string>

#include "../../core/error.h"

namespace sash::cpu {
namespace {

constexpr int64_t kSmallStep = 64;
constexpr int64_t kSmallLimit = 1024;
constexpr int64_t kHugeFrom = int64_t{4} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kLargest = int64_t{1} << 40;  // refused without asking the system

void* system_allocate(int64_t bytes) {
  const bool huge = bytes >= kHugeFrom;
  void* memory = nullptr;
  if (posix_memalign(&memory, huge ? kHugePage : 64, static_cast<size_t>(bytes)) != 0) {
    return nullptr;
  }
  if (huge) madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint: may fail
  return memory;
}

#if defined(SASH_NO_POOL)
constexpr bool kCaching = false;
#else
constexpr bool kCaching = true;
#endif

}  // namespace

CachingAllocator::SizeClass CachingAllocator::size_class(int64_t bytes) {
  if constexpr (!kCaching) return {0, bytes};
  if (bytes <= kSmallLimit) {
    const int64_t steps = (bytes + kSmallStep - 1) / kSmallStep;
    return {static_cast<size_t>(steps - 1), steps * kSmallStep};
  }
  // 2^p < bytes <= 2^(p + 1), in eight steps of 2^(p - 3).
  const int p = static_cast<int>(std::bit_width(static_cast<uint64_t>(bytes - 1))) - 1;
  const int64_t step = int64_t{1} << (p - 3);
  const int64_t steps = (bytes + step - 1) / step;
  return {kSmallClasses + static_cast<size_t>(8 * (p - 10) + (steps - 9)), steps * step};
}

void* CachingAllocator::allocate(int64_t bytes) {
  if (bytes <= 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const SizeClass size = size_class(std::min(bytes, kLargest));
  void* memory = bytes <= kLargest ? take_cached(size) : nullptr;
  if (!memory) memory = from_system(size, bytes);
  count(size.bytes);
  return memory;
}

void CachingAllocator::deallocate(void* memory, int64_t bytes) noexcept {
  if (!memory) return;
  const SizeClass size = size_class(bytes);
  const std::lock_guard lock(mutex_);
  stats_.current -= size.bytes;
  if constexpr (!kCaching) {
    std::free(memory);
    return;
  }
  auto* block = static_cast<FreeBlock*>(memory);
  block->next = free_[size.index];
  free_[size.index] = block;
  block_bytes_[size.index] = size.bytes;
  stats_.cached += size.bytes;
}

void* CachingAllocator::take_cached(const SizeClass& size) {
  if constexpr (!kCaching) return nullptr;
  FreeBlock* block = free_[size.index];
  if (!block) return nullptr;
  free_[size.index] = block->next;
  stats_.cached -= size.bytes;
  return block;
}

void* CachingAllocator::from_system(const SizeClass& size, int64_t asked) {
  const int64_t cached = stats_.cached;
  if (asked <= kLargest) {
    ++stats_.system_allocations;
    if (void* memory = system_allocate(size.bytes)) return memory;
    empty_cache_locked();
    if (void* memory = system_allocate(size.bytes)) return memory;
  }
  throw OutOfMemory("allocate", "asked for " + std::to_string(asked) + " bytes on cpu, " +
                                    std::to_string(stats_.current) + " bytes in use, " +
                                    std::to_string(cached) + " bytes free (cached)");
}

void CachingAllocator::count(int64_t bytes) {
  stats_.current += bytes;
  stats_.peak = std::max(stats_.peak, stats_.current);
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak = stats_.current;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  empty_cache_locked();
}

void CachingAllocator::empty_cache_locked() noexcept {
  for (size_t index = 0; index < kClasses; ++index) {
    while (FreeBlock* block = free_[index]) {
      free_[index] = block->next;
      stats_.cached -= block_bytes_[index];
      std::free(block);
    }
  }
}

}  // namespace sash::cpu
