#pragma once

#include <optional>

#include "../../../ops/kernels/attention.h"
#include "../shape/halves.h"

namespace sash::cpu::attn {

using cpu::FloatOperand;
using cpu::FloatResult;

/// The inputs of both passes.
class FloatInputs {
 public:
  FloatInputs(KernelContext& context, const kernels::AttentionInputs& inputs,
              const kernels::AttentionParams& params)
      : q_(context, inputs.q), k_(context, inputs.k), v_(context, inputs.v), params_(params) {
    if (params.bias) params_.bias = &bias_.emplace(context, *params.bias).view();
  }
  kernels::AttentionInputs inputs() const { return {q_.view(), k_.view(), v_.view()}; }
  const kernels::AttentionParams& params() const { return params_; }

 private:
  FloatOperand q_, k_, v_;
  std::optional<FloatOperand> bias_;
  kernels::AttentionParams params_;
};

}  // namespace sash::cpu::attn
