#pragma once

#include "../../../../ops/kernels/attention.h"

namespace sash::cuda {

using kernels::AttentionInputs;
using kernels::AttentionParams;

/// `kernels::attention_kept_bytes` of a call whose kernels read what dropout keeps as bits.
int64_t attention_kept_bytes(const AttentionInputs& inputs, const AttentionParams& params);

}  // namespace sash::cuda
