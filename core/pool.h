#pragma once

#include <cstddef>

#include "export.h"

namespace sash {

/// Small-object pool for what every recorded op makes (tensors, nodes, closures): freed blocks are
/// kept by size class, so that a steady training step asks the system for nothing. Thread-safe.
/// Blocks are aligned to 16 bytes; requests above 1 KiB go to the system allocator.
/// With `SASH_NO_POOL` (sanitizer builds) every request does.
SASH_API void* pool_allocate(size_t bytes);
SASH_API void pool_deallocate(void* block, size_t bytes) noexcept;

/// Requests that the pool had to pass on to the system allocator so far.
SASH_API size_t pool_system_allocations();
/// Bytes that the pool holds, in use or free: its peak, since none are given back.
SASH_API size_t pool_system_bytes();

}  // namespace sash
