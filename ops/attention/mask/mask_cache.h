#pragma once

#include <cstdint>

#include "../../../core/export.h"

/// Compiled masks that are kept for later calls, on all devices together.
namespace sash {

inline constexpr int64_t kDefaultMaskCacheLimit = int64_t{128} << 20;

/// Limits the bytes of compiled masks that are kept (`MemoryStats::masks`). The least recently used
/// maps are dropped first. A map above the limit is compiled in every call. A causal mask or a
/// window over S tokens takes about S bytes; other masks take 16 bytes for each visible block of 64
/// x 64. Maps of masks with tensors or functions are dropped with the mask. `ValueError` if `bytes`
/// is negative.
SASH_API void set_mask_cache_limit(int64_t bytes);

/// Drops all kept maps.
SASH_API void clear_mask_cache();

}  // namespace sash
