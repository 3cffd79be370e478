#pragma once

#include "../../../ops/kernels/linalg.h"

namespace sash::cuda {

/// `kernels::linear_step` for x of up to four rows. It takes as long as reading w once: a team of
/// lanes computes the products with a row of w. Halves are summed in float32. The bits of a row of
/// the result do not depend on the other rows. Returns false, and does nothing, for more rows,
/// float64, or operands that do not lie in rows of aligned vectors.
bool few_rows_product(const KernelContext& context, View x, View w,
                      const kernels::LinearStepParams& params, View y);

}  // namespace sash::cuda
