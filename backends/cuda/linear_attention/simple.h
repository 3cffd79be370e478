#pragma once

#include "common.h"

/// Linear attention without tensor cores: any floating dtype, any number of features. Products run
/// in float32, or in float64 for float64.
namespace sash::cuda::linear {

LinearForward simple_forward;
LinearBackward simple_backward;

}  // namespace sash::cuda::linear
