#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// a <- a w in place, for a [..., K] and a square w [K, K]; `w.mT()` gives a <- a w', and is read
/// as it lies. Returns a.
///
/// Blocks of rows go through scratch memory of at most 8 Mi elements, 2 Mi on the CPU (or one row):
/// there is no second buffer of a's size. Floating dtypes; those of a and w may differ, then the
/// product is computed in their `promote_types`, and rounded once to a's. Halves are summed in
/// float32.
///
/// Recorded: the gradient of a needs w alone; that of w needs the old a, of which a clone is kept
/// only if w requires grad. Throws `ShapeError` unless the shapes fit, `ValueError` for an expanded
/// a, `AutogradError` for a leaf that requires grad, unless under `NoGradGuard`.
SASH_API Tensor matmul_(Tensor a, const Tensor& w);

}  // namespace sash
