#pragma once

#include "multihead_attention.h"

namespace sash::nn {

/// A query at position p sees the keys from p - left to p + right, both included. A side that is
/// not set is unbounded.
struct AttentionWindow {
  std::optional<int64_t> left{};
  std::optional<int64_t> right{};

  /// 2 w + 1 keys around the query.
  static AttentionWindow symmetric(int64_t w) { return {w, w}; }
  /// `keys` keys up to the query.
  static AttentionWindow causal(int64_t keys) { return {keys - 1, 0}; }
};

/// `MultiheadAttention` within a sliding window, at a cost linear in S
/// (Beltagy et al., "Longformer", 2020; Jiang et al., "Mistral 7B", 2023):
///
///     nn::WindowAttention local(256, 8, nn::AttentionWindow::causal(512));
///
/// Parameters and calls are those of `MultiheadAttention`.
class SASH_API WindowAttention : public MultiheadAttention {
 public:
  /// `ValueError` for a negative side, and as `MultiheadAttention`.
  WindowAttention(int64_t dim, int64_t heads, const AttentionWindow& window,
                  const MultiheadAttentionOptions& options = {})
      : MultiheadAttention(dim, heads, options, AttentionMask::window(window.left, window.right)) {}
};

}  // namespace sash::nn
