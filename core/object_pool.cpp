#include "object_pool.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "locks.h"

namespace sash {
namespace {

constexpr size_t kStep = 32;
constexpr size_t kLargest = 1024;
constexpr size_t kSlab = 64 * 1024;

std::atomic<size_t> system_allocations{0};
std::atomic<size_t> slabs{0};

void* from_system(size_t bytes) {
  system_allocations.fetch_add(1, std::memory_order_relaxed);
  void* block = std::malloc(bytes);
  if (!block) throw std::bad_alloc();
  return block;
}

struct FreeBlock {
  FreeBlock* next;
};

// One free list per multiple of 32 bytes. Slabs are never freed: they are few, and tensors may be
// released after static destruction has begun.
class SizeClass {
 public:
  void* pop(size_t bytes) {
    lock_.lock();
    if (!free_) refill(bytes);
    FreeBlock* block = free_;
    free_ = block->next;
    lock_.unlock();
    return block;
  }

  void push(void* memory) {
    auto* block = static_cast<FreeBlock*>(memory);
    lock_.lock();
    block->next = free_;
    free_ = block;
    lock_.unlock();
  }

 private:
  void refill(size_t bytes) {
    char* slab = nullptr;
    try {
      slab = static_cast<char*>(from_system(kSlab));
      slabs.fetch_add(1, std::memory_order_relaxed);
    } catch (...) {
      lock_.unlock();
      throw;
    }
    for (size_t at = 0; at + bytes <= kSlab; at += bytes) {
      auto* block = reinterpret_cast<FreeBlock*>(slab + at);
      block->next = free_;
      free_ = block;
    }
  }

  SpinLock lock_;
  FreeBlock* free_ = nullptr;
};

constinit std::array<SizeClass, kLargest / kStep> classes;

}  // namespace

void* allocate_object(size_t bytes) {
#if !defined(SASH_NO_MEMORY_REUSE)
  if (bytes <= kLargest) {
    const size_t index = (bytes + kStep - 1) / kStep;
    const size_t at = index == 0 ? 0 : index - 1;
    return classes[at].pop((at + 1) * kStep);
  }
#endif
  return from_system(bytes);
}

void deallocate_object(void* block, size_t bytes) noexcept {
  if (!block) return;
#if !defined(SASH_NO_MEMORY_REUSE)
  if (bytes <= kLargest) {
    classes[bytes == 0 ? 0 : (bytes - 1) / kStep].push(block);
    return;
  }
#endif
  (void)bytes;
  std::free(block);
}

size_t object_pool_system_allocations() {
  return system_allocations.load(std::memory_order_relaxed);
}
size_t object_pool_bytes() { return slabs.load(std::memory_order_relaxed) * kSlab; }

}  // namespace sash
