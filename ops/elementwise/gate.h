#pragma once

#include "../kernels/glu.h"
#include "glu.h"

namespace sash::detail {

/// The kernels' gate for `kind`. `ValueError` for a number that is no `GluKind`.
kernels::Gate gate_of(GluKind kind);

}  // namespace sash::detail
