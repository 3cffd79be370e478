#include "host_memory.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string>

#include "../../../core/error.h"
#include "check.h"

namespace sash::cuda {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLeast = 4096;
constexpr int64_t kSlack = 64 * kMiB;
constexpr int64_t kLargest = int64_t{1} << 48;  // more throws without a call to the driver

int64_t rounded(int64_t bytes) {
  if (bytes > kMiB) return (bytes + kMiB - 1) / kMiB * kMiB;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kLeast))));
}

/// Null if the host has no memory.
void* host_allocate(int64_t bytes) {
  const auto portable = [](void** memory, size_t size) {
    return cudaHostAlloc(memory, size, cudaHostAllocPortable);
  };
  return try_allocate(portable, bytes);
}

}  // namespace

void* HostMemory::allocate(int64_t bytes) {
  if (bytes <= 0) return nullptr;
  const std::lock_guard lock(mutex_);
  Block* block = nullptr;
  if (bytes <= kLargest) {
    const int64_t size = rounded(bytes);
    block = idle_block(size);
    if (!block) {
      auto made = std::make_unique<Block>();
      ++system_allocations_;
      void* memory = host_allocate(size);
      if (!memory) {
        trim(0);
        memory = host_allocate(size);
      }
      if (memory) {
        made->memory = static_cast<char*>(memory);
        made->bytes = size;
        block = made.release();
      }
    }
  }
  if (!block) {
    throw OutOfMemory("allocate_host", "asked for " + std::to_string(bytes) +
                                           " bytes of page-locked memory, " +
                                           std::to_string(pinned_) + " bytes in use");
  }
  used_.emplace(block->memory, block);
  pinned_ += block->bytes;
  most_pinned_ = std::max(most_pinned_, pinned_);
  return block->memory;
}

void HostMemory::deallocate(void* memory) noexcept {
  if (!memory) return;
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return;
  Block* block = found->second;
  used_.erase(found);
  pinned_ -= block->bytes;
  free_.emplace(block->bytes, block);
  cached_ += block->bytes;
  if (cached_ <= limit()) return;
  try {
    trim(limit());
  } catch (const Error&) {  // stays cached
  }
}

int64_t HostMemory::limit() const {
  return limit_ != kNoCacheLimit ? limit_ : 2 * most_pinned_ + kSlack;
}

void HostMemory::set_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  trim(limit());
}

HostMemory::Block* HostMemory::find(const void* memory) const {
  const auto after = used_.upper_bound(memory);
  if (after == used_.begin()) return nullptr;
  Block* block = std::prev(after)->second;
  return std::less<>()(memory, static_cast<const void*>(block->memory + block->bytes)) ? block
                                                                                       : nullptr;
}

bool HostMemory::queued(const void* memory, int card, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  Block* block = find(memory);
  if (!block) return false;
  std::vector<Copy>& copies = block->copies;
  auto copy = std::find_if(copies.begin(), copies.end(), [&](const Copy& c) {
    return c.card == card && (c.stream == stream || done(c));
  });
  if (copy == copies.end()) {
    Copy made{.card = card, .stream = stream, .event = nullptr};
    SASH_CUDA_CHECK(cudaEventCreateWithFlags(&made.event, cudaEventDisableTiming));
    copy = copies.insert(copies.end(), made);
  }
  copy->stream = stream;
  SASH_CUDA_CHECK(cudaEventRecord(copy->event, stream));
  return true;
}

bool HostMemory::done(const Copy& copy) {
  const RelaxedCapture relaxed;
  const cudaError_t status = cudaEventQuery(copy.event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  SASH_CUDA_CHECK(status);
  return true;
}

bool HostMemory::done(const Block& block) {
  return std::all_of(block.copies.begin(), block.copies.end(),
                     [](const Copy& copy) { return done(copy); });
}

HostMemory::Block* HostMemory::idle_block(int64_t bytes) {
  const auto [first, last] = free_.equal_range(bytes);
  const auto found =
      std::find_if(first, last, [](const auto& entry) { return done(*entry.second); });
  if (found == last) return nullptr;
  Block* block = found->second;
  free_.erase(found);
  cached_ -= block->bytes;
  return block;
}

void HostMemory::add_to(MemoryStats& stats) const {
  const std::lock_guard lock(mutex_);
  stats.pinned += pinned_;
  stats.pinned_cached += cached_;
  stats.system_allocations += system_allocations_;
}

void HostMemory::empty_cache() {
  const std::lock_guard lock(mutex_);
  trim(0);
}

void HostMemory::trim(int64_t most_cached) {
  for (auto at = free_.begin(); at != free_.end() && cached_ > most_cached;) {
    if (!done(*at->second)) {
      ++at;
      continue;
    }
    const std::unique_ptr<Block> block(at->second);
    at = free_.erase(at);
    cached_ -= block->bytes;
    for (const Copy& copy : block->copies) SASH_CUDA_CHECK(cudaEventDestroy(copy.event));
    const RelaxedCapture relaxed;
    SASH_CUDA_CHECK(cudaFreeHost(block->memory));
  }
}

}  // namespace sash::cuda
