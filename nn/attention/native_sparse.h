#pragma once

#include "../layers/linear.h"
#include "attention_kind.h"
#include "key_value_cache.h"

namespace sash::nn {

/// The three branches of `NativeSparseAttention` and their gates. Parameters: `gate.weight`
/// [3 heads, dim], `gate.bias`, the gates of the branches one after the other; with learned pooling
/// `key_pool` [kv_heads, block, head_dim] and `value_pool`, with the values' width (1 / block at
/// first, which is the mean).
class SASH_API NativeSparseBranches : public ModuleOf<NativeSparseBranches> {
 public:
  struct Heads {
    int64_t dim, heads, kv_heads, head_dim, v_head_dim;
  };

  NativeSparseBranches(const Heads& heads, const NativeSparseOptions& options, bool draw = true);

  /// Heads [B, H, S_q, D_v] of the inputs x [B, S_q, dim] and their q, k and v, under
  /// `options.scale` and `options.dropout`. `cache`: the cache that k and v come from.
  Tensor forward(const Tensor& x, const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options, KeyValueCache* cache = nullptr);
  using Module::forward;

 private:
  Tensor pooled(const Tensor& x, KeyValueCache* cache, size_t slot, const Tensor& weight) const;

  NativeSparseOptions options_;

 public:
  Linear& gate;
  Tensor key_pool;  ///< undefined without learned pooling, like the next
  Tensor value_pool;
};

}  // namespace sash::nn
