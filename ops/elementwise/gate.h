#pragma once

#include "../kernels/glu.h"
#include "glu.h"

namespace sash::detail {

/// The gate that kernels know `kind` by. `ValueError` if it is none.
kernels::Gate gate_of(GluKind kind);

}  // namespace sash::detail
