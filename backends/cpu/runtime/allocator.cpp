#include "allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <string>

#include "../../../core/error.h"

namespace sash::cpu {
namespace {

constexpr int64_t kSmallStep = 64;
constexpr int64_t kSmallLimit = 1024;
/// Large tensors have huge pages of their own; tensors from kSharedFrom on share segments of huge
/// pages, which makes small training steps 2 to 3 % faster.
constexpr int64_t kHugeFrom = int64_t{4} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kSharedFrom = int64_t{16} << 10, kSharedSegment = int64_t{16} << 20;
constexpr int64_t kSlack = int64_t{32} << 20;
constexpr int64_t kLeastTidied = int64_t{1} << 20;
constexpr int64_t kLargest = int64_t{1} << 40;  // more throws without a call to the system

void* system_allocate(int64_t bytes) {
  const bool huge = bytes >= kHugeFrom;
  void* memory = nullptr;
  if (posix_memalign(&memory, huge ? kHugePage : 64, static_cast<size_t>(bytes)) != 0) {
    return nullptr;
  }
  if (huge) madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint: may fail
  return memory;
}

#if defined(SASH_NO_MEMORY_REUSE)
constexpr bool kCaching = false;
#else
constexpr bool kCaching = true;
#endif

[[noreturn]] void throw_out_of_memory(int64_t asked, const MemoryStats& stats) {
  throw OutOfMemory("allocate", "asked for " + std::to_string(asked) + " bytes on cpu, " +
                                    std::to_string(stats.current) + " bytes in use, " +
                                    std::to_string(stats.cached) + " bytes free (cached)");
}

}  // namespace

CachingAllocator::SizeClass CachingAllocator::size_class(int64_t bytes) {
  if constexpr (!kCaching) return {0, bytes};
  if (bytes <= kSmallLimit) {
    const int64_t steps = (bytes + kSmallStep - 1) / kSmallStep;
    return {static_cast<size_t>(steps - 1), steps * kSmallStep};
  }
  // 2^p < bytes <= 2^(p + 1): eight classes, 2^(p - 3) bytes apart.
  const int p = static_cast<int>(std::bit_width(static_cast<uint64_t>(bytes - 1))) - 1;
  const int64_t step = int64_t{1} << (p - 3);
  const int64_t steps = (bytes + step - 1) / step;
  return {kSmallClasses + static_cast<size_t>(8 * (p - 10) + (steps - 9)), steps * step};
}

CachingAllocator::Block* CachingAllocator::pop(size_t index) {
  Block* block = free_[index];
  if (!block) return nullptr;
  free_[index] = block->next_free;
  stats_.cached -= block->bytes;
  return block;
}

// Adds the block to the largest class that is not larger than the block.
void CachingAllocator::push(Block* block) {
  const SizeClass size = size_class(block->bytes);
  const size_t index = size.bytes > block->bytes ? size.index - 1 : size.index;
  block->used = false;
  block->next_free = free_[index];
  free_[index] = block;
  stats_.cached += block->bytes;
}

void* CachingAllocator::allocate(int64_t bytes) {
  if (bytes <= 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const SizeClass size = size_class(std::min(bytes, kLargest));
  if constexpr (!kCaching) {
    void* memory = nullptr;
    if (bytes <= kLargest) {
      ++stats_.system_allocations;
      memory = system_allocate(bytes);
    }
    if (!memory) throw_out_of_memory(bytes, stats_);
    count(bytes);
    return memory;
  }
  Block* block = bytes <= kLargest ? pop(size.index) : nullptr;
  if (!block) block = new_block(size, bytes);
  block->used = true;
  count(size.bytes);
  return block + 1;
}

void CachingAllocator::deallocate(void* memory, int64_t bytes) noexcept {
  if (!memory) return;
  const std::lock_guard lock(mutex_);
  if constexpr (!kCaching) {
    stats_.current -= bytes;
    std::free(memory);
    return;
  }
  Block* block = static_cast<Block*>(memory) - 1;
  stats_.current -= size_class(bytes).bytes;
  const bool alone = !block->before && !block->after;
  if (alone && block->bytes > limit_ - stats_.cached) return give_back(block);
  push(block);
  if (stats_.cached > next_tidy_) keep_to_limit();
}

// Free bytes allowed on top of the peak use; see `CachingAllocator`.
int64_t CachingAllocator::slack() const {
  return limit_ != kNoCacheLimit ? limit_ : most_used_ / 2 + kSlack;
}

CachingAllocator::Block* CachingAllocator::new_block(const SizeClass& size, int64_t asked) {
  const int64_t in_use = stats_.current + size.bytes;
  const int64_t most = std::max(most_used_, in_use) + slack();
  if (asked <= kLargest && stats_.cached > most - in_use) {
    if (Block* block = cut(size)) return block;
    tidy(kNoCacheLimit);
    if (Block* block = cut(size)) return block;
    tidy(std::max<int64_t>(most - in_use, 0));
  }
  const bool shares = size.bytes >= kSharedFrom && size.bytes < kHugeFrom;
  if (shares && limit_ == kNoCacheLimit) {
    if (Block* block = from_rest(size)) return block;
  }
  return from_system(size, asked);
}

// A block of `size` from the unused end of the newest shared segment, or of a new one. Null if the
// system has no memory for a segment.
CachingAllocator::Block* CachingAllocator::from_rest(const SizeClass& size) {
  Block* block = rest_;
  if (block && block->bytes >= size.bytes) {
    stats_.cached -= block->bytes;
  } else {
    void* const memory = system_allocate(kSharedSegment);
    if (!memory) return nullptr;
    ++stats_.system_allocations;
    if (rest_) {
      stats_.cached -= rest_->bytes;
      push(rest_);
    }
    block = new_segment(memory, kSharedSegment - static_cast<int64_t>(sizeof(Block)));
  }
  rest_ = split(block, size.bytes);
  if (rest_) {
    rest_->used = true;  // not in a free list
    stats_.cached += rest_->bytes;
  }
  return block;
}

CachingAllocator::Block* CachingAllocator::from_system(const SizeClass& size, int64_t asked) {
  const MemoryStats before = stats_;
  void* memory = nullptr;
  if (asked <= kLargest) {
    const auto whole = size.bytes + static_cast<int64_t>(sizeof(Block));
    ++stats_.system_allocations;
    memory = system_allocate(whole);
    if (!memory) {
      tidy(0);
      memory = system_allocate(whole);
    }
  }
  if (!memory) throw_out_of_memory(asked, before);
  return new_segment(memory, size.bytes);
}

CachingAllocator::Block* CachingAllocator::new_segment(void* memory, int64_t bytes) {
  auto* const block = new (memory) Block{.bytes = bytes,
                                         .before = nullptr,
                                         .after = nullptr,
                                         .next_free = nullptr,
                                         .older = newest_,
                                         .newer = nullptr,
                                         .used = false};
  (newest_ ? newest_->newer : oldest_) = block;
  newest_ = block;
  return block;
}

// A block of `size`, split off a free block of the smallest class that has one, from `size` up.
CachingAllocator::Block* CachingAllocator::cut(const SizeClass& size) {
  Block* block = nullptr;
  for (size_t index = size.index; !block && index < kClasses; ++index) block = pop(index);
  if (!block) return nullptr;
  if (Block* const other = split(block, size.bytes)) push(other);
  return block;
}

// Shortens a block to `bytes`. Returns what is left as a block of its own, null if that is little.
CachingAllocator::Block* CachingAllocator::split(Block* block, int64_t bytes) {
  const int64_t rest = block->bytes - bytes - static_cast<int64_t>(sizeof(Block));
  if (rest < kSmallStep) return nullptr;
  auto* const other = new (reinterpret_cast<char*>(block + 1) + bytes) Block{.bytes = rest,
                                                                             .before = block,
                                                                             .after = block->after,
                                                                             .next_free = nullptr,
                                                                             .older = nullptr,
                                                                             .newer = nullptr,
                                                                             .used = false};
  if (other->after) other->after->before = other;
  block->after = other;
  block->bytes = bytes;
  return other;
}

// Merges a free block with the free blocks after it. The caller must then rebuild the free lists.
void CachingAllocator::merge(Block* first) {
  while (first->after && !first->after->used) {
    const Block* const second = first->after;
    first->bytes += second->bytes + static_cast<int64_t>(sizeof(Block));
    first->after = second->after;
    if (first->after) first->after->before = first;
  }
}

// Merges all free neighbours. Then returns segments without a block in use to the system, oldest
// first, until at most `most_cached` bytes are free.
void CachingAllocator::tidy(int64_t most_cached) noexcept {
  if (rest_) rest_->used = false;
  rest_ = nullptr;
  int64_t free_bytes = 0;
  for (Block* segment = oldest_; segment; segment = segment->newer) {
    for (Block* block = segment; block; block = block->after) {
      if (block->used) continue;
      merge(block);
      free_bytes += block->bytes;
    }
  }
  free_.fill(nullptr);
  stats_.cached = 0;
  for (Block* segment = oldest_; segment;) {
    Block* const following = segment->newer;
    if (!segment->used && !segment->after && free_bytes > most_cached) {
      free_bytes -= segment->bytes;
      give_back(segment);
    } else {
      for (Block* block = segment; block; block = block->after) {
        if (!block->used) push(block);
      }
    }
    segment = following;
  }
}

void CachingAllocator::give_back(Block* segment) noexcept {
  (segment->older ? segment->older->newer : oldest_) = segment->newer;
  (segment->newer ? segment->newer->older : newest_) = segment->older;
  std::free(segment);
}

// If segments with blocks in use keep the cache above the limit, the next attempt is made only
// after kLeastTidied more bytes were freed.
void CachingAllocator::keep_to_limit() noexcept {
  tidy(limit_);
  next_tidy_ = stats_.cached <= limit_ ? limit_ : stats_.cached + kLeastTidied;
}

void CachingAllocator::count(int64_t bytes) {
  stats_.current += bytes;
  stats_.peak = std::max(stats_.peak, stats_.current);
  most_used_ = std::max(most_used_, stats_.current);
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  MemoryStats stats = stats_;
  stats.cache_limit = limit_;
  return stats;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  tidy(0);
  most_used_ = stats_.current;
}

void CachingAllocator::set_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  keep_to_limit();
}

}  // namespace sash::cpu
