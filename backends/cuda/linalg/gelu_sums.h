#pragma once

#include "../../../tensor/kernels/view.h"

namespace sash::cuda {

/// d [rows, n] *= gelu'(z), and sums [n] = the sums of the columns of the new d, in one pass. All
/// are contiguous and have one floating dtype.
void gelu_gradient_and_sums(KernelContext& context, View z, View d, View sums, bool tanh);

}  // namespace sash::cuda
