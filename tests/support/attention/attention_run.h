#pragma once

#include <vector>

#include "attention_reference.h"

namespace sash::testing {

/// The library's results and gradients, as in `AttentionAnswer`; undefined without such an input.
struct AttentionResults {
  Tensor out, lse, dq, dk, dv, dbias, drelative;
  std::vector<Tensor> all() const { return {out, lse, dq, dk, dv, dbias, drelative}; }
};

/// What the library computes for `problem` in `dtype`; `mask` must show what `sees` says.
AttentionResults run_attention(const AttentionProblem& problem, const AttentionMask& mask,
                               DType dtype, Device device);

}  // namespace sash::testing
