#pragma once

#include "block_map.h"
#include "mask_cache.h"

namespace sash {

/// Returns the kept map of an equal mask. If there is none, compiles one and keeps it. Call `use`
/// before a kernel reads the map.
SASH_API std::shared_ptr<const CompiledBlockMap> cached_block_map(const MaskTermPtr& term,
                                                                  const MaskShape& shape,
                                                                  int64_t query_rows,
                                                                  Device device);

}  // namespace sash
