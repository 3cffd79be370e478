#pragma once

#include "multihead_attention.h"

namespace sash::nn {

/// The pattern of `LongformerAttention`.
struct LongformerOptions {
  int64_t window = 256;              ///< w: tokens to either side
  std::vector<int64_t> global{0};    ///< tokens that see, and are seen by, all
  std::vector<int64_t> dilations{};  ///< of the window, one per head; 1 by default
  bool global_projections = true;    ///< separate projections for global tokens
};

/// Attention within a symmetric window and to global tokens (Beltagy et al., "Longformer: the
/// long-document transformer", 2020). Token p sees j if p - j is a multiple n d of the head's
/// dilation d with -w <= n <= w, or if p or j is global. With `global_projections`, the queries of
/// global tokens, and the keys and values they attend to, come from three further projections.
///
/// Parameters are those of `MultiheadAttention` and, with global projections, `query_global.weight`
/// [dim, dim], `key_global.weight` and `value_global.weight` [kv_heads head_dim, dim], each with a
/// `bias` if the options have one; they start as copies of the local projections.
class SASH_API LongformerAttention : public MultiheadAttention {
 public:
  /// `ValueError` for a negative window or token, for dilations that are not positive or not one
  /// per head, and as `MultiheadAttention`.
  LongformerAttention(int64_t dim, int64_t heads, const LongformerOptions& pattern = {},
                      const MultiheadAttentionOptions& options = {});

  using MultiheadAttention::forward;
  Tensor forward(const Tensor& x, const AttentionMask& mask) override;
  /// Self-attention alone: `ValueError` unless q, k and v are one tensor.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionMask& mask = {}) override;
  /// `NotImplemented` with global projections: each row has two sets of weights.
  AttentionWithWeights forward_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const AttentionMask& mask = {},
                                            bool average_heads = true) override;
  /// `NotImplemented` with global projections, whose rows see later tokens.
  Tensor forward(const Tensor& x, KeyValueCache& cache) override;

 private:
  // Masks of the queries of local and of global tokens.
  struct Rows {
    int64_t length = -1;
    Device device{};
    AttentionMask local{}, global{};
  };
  Rows rows(int64_t length, Device device);
  Linear& global_projection(const char* name, int64_t first_head, int64_t count);

  std::vector<int64_t> global_tokens_;
  Rows rows_;

 public:
  Linear* query_global = nullptr;  ///< null without global projections, like the next two
  Linear* key_global = nullptr;
  Linear* value_global = nullptr;
};

}  // namespace sash::nn
