#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

namespace sash {

/// How kernels take their operands.
using View = const TensorView&;

}  // namespace sash
