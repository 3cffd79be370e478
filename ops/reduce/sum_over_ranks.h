#pragma once

#include "../../tensor/distributed/group.h"

namespace sash {

/// y = the sum of the ranks' x, on all ranks. Differentiable, any number of times: the gradient of
/// x is the sum of the ranks' gradients of y. A collective, forward and backward; errors as those
/// of `Group::all_reduce`.
SASH_API Tensor sum_over_ranks(const Tensor& x, const distributed::Group& ranks);

}  // namespace sash
