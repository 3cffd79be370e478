#include "mask_statistics.h"

#include <limits>

#include "../../../tensor/autograd/grad_mode.h"
#include "../../kernels/block_map.h"
#include "bound_mask.h"

namespace sash {
namespace {

using kernels::kBlockKeys;

int64_t blocks_of(int64_t tokens) { return (tokens + kBlockKeys - 1) / kBlockKeys; }

[[noreturn]] void refuse_count() { throw ValueError(kMask, "counts below 2^63", "more"); }

int64_t sum(int64_t a, int64_t b) {
  if (__builtin_add_overflow(a, b, &a)) refuse_count();
  return a;
}

int64_t product(int64_t a, int64_t b) {
  if (__builtin_mul_overflow(a, b, &a)) refuse_count();
  return a;
}

// Counts without a list of blocks: a run of blocks that are all visible is one step.
class Counter {
 public:
  Counter(const MaskTerm& term, const MaskShape& shape) : mask_(term, shape), shape_(shape) {}

  MaskStatistics run(int64_t batches, int64_t heads) {
    const int64_t rows = blocks_of(shape_.queries), columns = blocks_of(shape_.keys);
    constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();
    const int64_t all_rows = product(product(batches, heads), rows);
    if (all_rows > kMostRows) {
      throw ValueError(kMask, "fewer than 2^31 block rows", std::to_string(all_rows));
    }
    found_.all_blocks = product(all_rows, columns);
    for (int64_t row = 0; columns > 0 && row < all_rows; ++row) {
      const int64_t head = row / rows, first = row % rows * kBlockKeys;
      add_row({head / heads, head % heads},
              intersect({first, first + kBlockKeys}, {0, shape_.queries}));
    }
    return found_;
  }

 private:
  void add_row(MaskHead head, IndexRange queries) {
    mask_.for_each_run(head, queries, shape_.keys, [&](IndexRange blocks, Coverage coverage) {
      const IndexRange keys =
          intersect({blocks.first * kBlockKeys, blocks.past * kBlockKeys}, {0, shape_.keys});
      const int64_t all = queries.size() * keys.size();
      if (coverage == Coverage::full) return count(blocks.size(), true, all);
      uint64_t rows[kBlockKeys];
      const int64_t pairs = mask_.read_tile(head, queries, keys, rows);
      if (pairs > 0) count(1, pairs == all, pairs);
    });
  }

  void count(int64_t blocks, bool full, int64_t pairs) {
    found_.visible_pairs = sum(found_.visible_pairs, pairs);
    found_.listed_blocks += blocks;
    if (full) found_.full_blocks += blocks;
  }

  BoundMask mask_;
  MaskShape shape_;
  MaskStatistics found_;
};

}  // namespace

MaskStatistics mask_statistics(const AttentionMask& mask, const MaskShape& shape) {
  check_mask_shape(shape);
  const NoGradGuard no_grad;
  const MaskExtents extents = extents_of(mask.term());
  const int64_t batches = extents.per_batch ? shape.batch : 1;
  const int64_t heads = extents.per_head ? shape.heads : 1;
  MaskStatistics all = Counter(mask.term(), shape).run(batches, heads);
  const int64_t copies =
      product(extents.per_batch ? 1 : shape.batch, extents.per_head ? 1 : shape.heads);
  for (int64_t* count :
       {&all.visible_pairs, &all.listed_blocks, &all.full_blocks, &all.all_blocks}) {
    *count = product(*count, copies);
  }
  return all;
}

MaskStatistics mask_statistics(const AttentionMask& mask, int64_t queries, int64_t keys) {
  return mask_statistics(mask, shape_of(mask.term(), queries, keys));
}

}  // namespace sash
