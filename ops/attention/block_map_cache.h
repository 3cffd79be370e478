#pragma once

#include "block_map.h"

/// Compiled masks that are kept for later calls, on all devices together.
namespace sash {

inline constexpr int64_t kDefaultMaskCacheLimit = int64_t{128} << 20;

/// Most bytes of compiled masks that are kept, the most recently used ones
/// (`MemoryStats::masks`). A larger map is compiled in every call: a causal mask over S tokens
/// takes about S^2 / 512 bytes. Maps of masks with tensors or functions are dropped with the mask.
/// `ValueError` if `bytes` is negative.
SASH_API void set_mask_cache_limit(int64_t bytes);

/// Drops all kept maps.
SASH_API void clear_mask_cache();

/// The map of an equal mask if one is kept, else a new one, which is then kept. Call `use` before a
/// kernel reads it.
SASH_API std::shared_ptr<const CompiledBlockMap> cached_block_map(const MaskTermPtr& term,
                                                                  const MaskShape& shape,
                                                                  int64_t query_rows,
                                                                  Device device);

}  // namespace sash
