#pragma once

#include "../../../../ops/kernels/attention.h"

namespace sash::cuda {

/// `kernels::attention_kept_bytes` of a call whose kernels read what dropout keeps as bits.
int64_t attention_kept_bytes(const kernels::AttentionInputs& inputs,
                             const kernels::AttentionParams& params);

}  // namespace sash::cuda
