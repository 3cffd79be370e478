#pragma once

#include "attention_mask.h"

namespace sash {

/// A mask that kernels without block maps can read.
struct SimpleMask {
  bool causal = false;
  Tensor key_lengths{};  ///< int32 [B]; undefined without
};

/// `mask` as that, if it is `causal()`, `key_lengths(...)`, both by `&`, or shows everything.
SASH_API std::optional<SimpleMask> simple_mask(const AttentionMask& mask);

}  // namespace sash
