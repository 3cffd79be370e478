#pragma once

#include "encoder.h"
#include "language_model.h"

namespace sash::nn {

/// A causal language model of any of the families in `TransformerConfig`.
class SASH_API Decoder : public LanguageModel {
 public:
  /// Masks are combined with `AttentionMask::causal()`. `ValueError` unless the extents are
  /// positive and fit each other.
  explicit Decoder(const TransformerConfig& config);

  /// What the layers' cross attention reads of an encoder's states [B, S, dim], under `mask`.
  /// `ValueError` without `cross_attention`.
  std::vector<CrossKeys> cross_keys(const Tensor& states, const AttentionMask& mask = {});

  ModuleList<Block>& layers;
};

using DecoderConfig [[deprecated("use TransformerConfig")]] = TransformerConfig;
using DecoderLayer [[deprecated("use Block")]] = Block;
using DecoderAttention [[deprecated("use BlockAttention")]] = BlockAttention;
using DecoderMlp [[deprecated("use BlockMlp")]] = BlockMlp;
using DecoderNorm [[deprecated("use Norm")]] = Norm;

}  // namespace sash::nn
