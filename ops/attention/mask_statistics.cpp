#include "mask_statistics.h"

#include "block_map_cache.h"

namespace sash {

MaskStatistics mask_statistics(const AttentionMask& mask, const MaskShape& shape) {
  check_mask_shape(shape);
  const auto compiled = cached_block_map(mask.shared_term(), shape, kernels::kBlockKeys, kCPU);
  const int64_t compiled_heads = compiled->map.batches * compiled->map.heads;
  const int64_t copies =
      compiled_heads == 0 ? 0 : numel({shape.batch, shape.heads}) / compiled_heads;
  MaskStatistics all = compiled->statistics;
  for (int64_t* count :
       {&all.visible_pairs, &all.listed_blocks, &all.full_blocks, &all.all_blocks}) {
    if (!__builtin_mul_overflow(*count, copies, count)) continue;
    throw ValueError("attention_mask", "counts below 2^63", "more");
  }
  return all;
}

MaskStatistics mask_statistics(const AttentionMask& mask, int64_t queries, int64_t keys) {
  return mask_statistics(mask, shape_of(mask.term(), queries, keys));
}

}  // namespace sash
