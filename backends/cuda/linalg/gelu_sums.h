#pragma once

#include "../../../core/backend/kernel.h"
#include "../../../core/backend/tensor_view.h"

namespace sash::cuda {

/// d [rows, n] *= gelu'(z) and sums [n] = those of its columns, in one pass; all contiguous and of
/// one floating dtype.
void gelu_gradient_and_sums(KernelContext& context, const TensorView& z, const TensorView& d,
                            const TensorView& sums, bool tanh);

}  // namespace sash::cuda
