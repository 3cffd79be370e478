#pragma once

#include "../../../tensor/kernels/view.h"

namespace sash::cuda {

/// d [rows, n] *= gelu'(z) and sums [n] = those of its columns, in one pass; all contiguous and of
/// one floating dtype.
void gelu_gradient_and_sums(KernelContext& context, View z, View d, View sums, bool tanh);

}  // namespace sash::cuda
