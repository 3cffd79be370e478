#pragma once

#include "../../../core/backend/kernel.h"
#include "../../../core/backend/tensor_view.h"

namespace sash::cuda {

/// y = x w' + bias (or null) for x of up to four rows, whose time is that of reading w once: a team
/// of lanes sums a row of w. Halves are summed in float32. A row's bits do not depend on the
/// others. Returns false, and does nothing, for more rows, float64, or operands that do not lie in
/// rows of aligned vectors.
bool few_rows_product(const KernelContext& context, const TensorView& x, const TensorView& w,
                      const TensorView* bias, const TensorView& y);

}  // namespace sash::cuda
