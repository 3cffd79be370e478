#pragma once

#include "../../tensor/tensor.h"

/// What linear layers share, fused with what follows them or not.
namespace sash::detail {

/// Throws unless weight [out, in] and bias [out], if defined, fit x [..., in].
void check_linear(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias);

struct ParameterGradients {
  Tensor weight, bias;  ///< undefined if not wanted
};

/// Of g [rows, out] and x [rows, in]: weight g' x and bias the sums of g's columns. Not recorded.
ParameterGradients parameter_gradients(const Tensor& g, const Tensor& x, bool weight, bool bias);

}  // namespace sash::detail
