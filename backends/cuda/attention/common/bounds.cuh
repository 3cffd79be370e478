#pragma once

#include <optional>

#include "../../../../ops/kernels/attention.h"
#include "block_bounds.h"

/// Bounds as kernels read them: for each query the range of keys that the query may see. Blocks are
/// 64 x 64.
namespace sash::cuda {

using kernels::AttentionGradients;
using kernels::AttentionInputs;
using kernels::AttentionParams;
using kernels::AttentionPass;

struct RowBounds {
  const int2* ranges = nullptr;  ///< [B or 1, H or 1, queries]: keys [lo, hi); null: no bounds
  /// [B or 1, H or 1, query blocks]: {min lo, max lo, min hi, max hi}
  const int4* summary = nullptr;
  const int2* seen_by = nullptr;  ///< [B or 1, H or 1, key blocks]: see `summarise_bounds`
  bool of_batch = false, of_head = false;
  int heads = 1;

  /// The number of head (b, h) among the heads whose bounds are stored.
  __device__ int64_t head(int b, int h) const {
    return (of_batch ? b : 0) * static_cast<int64_t>(heads) + (of_head ? h : 0);
  }
};

/// Owns the bounds of a call: the memory of their summary and, if `by_key`, of `seen_by`.
class BoundsSummary {
 public:
  BoundsSummary(const KernelContext& context, const AttentionInputs& inputs,
                const AttentionParams& params, bool by_key = false) {
    if (!params.bounds || params.bounds->numel() == 0) return;
    constexpr int64_t rows = kernels::kBlockKeys;
    const Shape& shape = params.bounds->shape;
    const int64_t blocks = (shape[2] + rows - 1) / rows, heads = shape[0] * shape[1];
    const int64_t key_blocks = (inputs.k.shape[2] + rows - 1) / rows;
    summary_.emplace(context, heads * blocks * int64_t{sizeof(int4)});
    if (by_key) seen_by_.emplace(context, heads * key_blocks * int64_t{sizeof(int2)});
    bounds_ = {.ranges = params.bounds->ptr<const int2>(),
               .summary = summary_->ptr<const int4>(),
               .seen_by = seen_by_ ? seen_by_->ptr<const int2>() : nullptr,
               .of_batch = shape[0] > 1,
               .of_head = shape[1] > 1,
               .heads = static_cast<int>(shape[1])};
    summarise_bounds(context, *params.bounds, rows, summary_->ptr<int4>(),
                     seen_by_ ? seen_by_->ptr<int2>() : nullptr, key_blocks);
  }
  const RowBounds& bounds() const { return bounds_; }

 private:
  std::optional<Workspace> summary_, seen_by_;
  RowBounds bounds_;
};

/// Bits [from, to) of a word.
__device__ inline uint64_t bit_range(int from, int to) {
  const auto all_from = [](int bit) {  // no bit from 64 on
    uint64_t word;
    asm("shl.b64 %0, %1, %2;" : "=l"(word) : "l"(~uint64_t{0}), "r"(max(bit, 0)));
    return word;
  };
  return all_from(from) & ~all_from(to);
}

}  // namespace sash::cuda
