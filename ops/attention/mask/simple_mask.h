#pragma once

#include "attention_mask.h"

namespace sash {

/// A mask that kernels without block maps can read.
struct SimpleMask {
  bool causal = false;
  Tensor key_lengths{};  ///< int32 [B]; undefined if all keys are visible
};

/// `mask` as a `SimpleMask` if it is `causal()`, `key_lengths(...)`, both joined by `&`, or shows
/// all pairs; else nullopt.
SASH_API std::optional<SimpleMask> simple_mask(const AttentionMask& mask);

}  // namespace sash
