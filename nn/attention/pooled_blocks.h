#pragma once

#include "../../ops/attention/approximate/select_blocks.h"
#include "../../ops/shape/concat.h"
#include "key_value_cache.h"

namespace sash::nn {

/// The blocks of x [B, H_kv, S, D] that have ended, pooled: [B, H_kv, floor(S / block), ...]. pool
/// takes whole blocks. Those that are summary number `slot` of `cache`, which x comes from, are not
/// pooled again.
template <class Pool>
Tensor pooled_blocks(const Tensor& x, int64_t block, KeyValueCache* cache, size_t slot,
                     const Pool& pool) {
  const int64_t ended = x.size(2) / block;
  if (!cache) return pool(x.narrow(2, 0, ended * block));
  std::vector<Tensor>& known = cache->summaries();
  if (slot == known.size()) known.push_back(pool(x.narrow(2, 0, 0)));
  const int64_t first = known[slot].size(2);
  if (first < ended) {
    known[slot] = cat({known[slot], pool(x.narrow(2, first * block, (ended - first) * block))}, 2);
  }
  return known[slot];
}

}  // namespace sash::nn
