#pragma once

#include <limits>

#include "attention.h"

/// `AttentionOptions::sink_logits`, from the result and log-sum-exp of attention without it.
namespace sash {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Throws as `attention` does, unless `sink_logits` is undefined or floating [H].
void check_sink_logits(const Tensor& q, const Tensor& sink_logits);

/// out sigmoid(lse - sink), in `dtype`: this adds exp(sink) to the denominator of the softmax. The
/// result is rounded once if `plain.out` has the dtype of lse.
Tensor out_with_sinks(const AttentionWithLse& plain, const Tensor& sink_logits, DType dtype);

/// log(exp(lse) + exp(sink)), which is sink where no key is visible.
Tensor lse_with_sinks(const Tensor& lse, const Tensor& sink_logits);

}  // namespace sash
