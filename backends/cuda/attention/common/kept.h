#pragma once

#include "../../../../ops/kernels/attention.h"

namespace sash::cuda {

using kernels::AttentionInputs;
using kernels::AttentionParams;

/// The size that `kernels::attention_kept_bytes` reports for a call: the bytes of its bit tiles
/// (kept.cuh), or 0 if its kernels read none.
int64_t attention_kept_bytes(const AttentionInputs& inputs, const AttentionParams& params);

void register_attention_dropout();

}  // namespace sash::cuda
