#pragma once

#include "transformer_stack.h"

namespace sash::nn {

/// A bidirectional encoder: ModernBERT, BERT, RoBERTa.
class SASH_API Encoder : public ModuleOf<Encoder, TransformerStack> {
 public:
  /// `ValueError` unless the extents are positive and fit each other.
  explicit Encoder(const TransformerConfig& config);

  /// What the head makes of `hidden`: logits [B, S, vocab], or these states without a head.
  Tensor forward(const Tensor& tokens) override { return forward(tokens, {}, {}); }
  Tensor forward(const Tensor& tokens, const AttentionMask& mask, const Tensor& types = {},
                 const Tensor& positions = {});
  /// The last states [B, S, dim] of tokens [B, S] int64 under the layers' masks & `mask`, such as
  /// `AttentionMask::key_lengths`, at `positions`. types [B, S] int64 are zeros if undefined.
  Tensor hidden(const Tensor& tokens, const AttentionMask& mask = {}, const Tensor& types = {},
                const Tensor& positions = {});

  ModuleList<Block>& layers;
};

}  // namespace sash::nn
