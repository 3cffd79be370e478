#pragma once

#include "block_map.h"
#include "mask_cache.h"

namespace sash {

/// The map of an equal mask if one is kept, else a new one, which is then kept. Call `use` before a
/// kernel reads it.
SASH_API std::shared_ptr<const CompiledBlockMap> cached_block_map(const MaskTermPtr& term,
                                                                  const MaskShape& shape,
                                                                  int64_t query_rows,
                                                                  Device device);

}  // namespace sash
