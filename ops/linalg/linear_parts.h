#pragma once

#include "../../tensor/tensor.h"

/// Checks of linear layers, fused with other ops or not.
namespace sash::detail {

/// Throws unless weight [out, in] and bias [out], if defined, fit x [..., in].
void check_linear(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  bool integers = false);

}  // namespace sash::detail
