#pragma once

#include <cstddef>

#include "export.h"

namespace sash {

/// Small-object pool for tensors, nodes and closures: freed blocks are kept by size class, so that
/// a steady training step makes no system allocation. Thread-safe. Blocks are aligned to 16 bytes;
/// requests above 1 KiB go to the system allocator.
/// With `SASH_NO_MEMORY_REUSE` (sanitizer builds) every request does.
SASH_API void* allocate_object(size_t bytes);
SASH_API void deallocate_object(void* block, size_t bytes) noexcept;

/// Requests passed on to the system allocator so far.
SASH_API size_t object_pool_system_allocations();
/// Bytes that the pool holds, in use or free. It never shrinks.
SASH_API size_t object_pool_bytes();

}  // namespace sash
