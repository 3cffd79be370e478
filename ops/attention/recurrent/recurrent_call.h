#pragma once

#include "gated_delta_rule.h"

/// One checked call of a recurrence over tokens: the input of the kernels and of the composite.
namespace sash {

/// The differentiable inputs: g, beta and the state in the dtype of sums; undefined if absent.
struct RecurrentTensors {
  Tensor q, k, v, g, beta, initial;
};

struct RecurrentCall {
  /// Throws as `gated_delta_rule` does; `op` is the function's name.
  RecurrentCall(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                const Tensor& beta, const RecurrentOptions& options);

  double scale;
  Tensor cu_seqlens{};  ///< a copy; undefined if the texts are the rows of the batch
};

/// Casts and, with `options.normalize`, normalises the inputs of a checked call.
RecurrentTensors recurrent_tensors(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& beta, const RecurrentOptions& options);

RecurrentResult recurrence_from_plain_ops(const RecurrentTensors& x, const RecurrentCall& call);

}  // namespace sash
