#pragma once

#include "../../tensor/tensor.h"

namespace sash {

struct NormalizeOptions {
  double p = 2;  ///< order of the norm
  int64_t axis = 1;
  double eps = 1e-12;  ///< smaller norms count as eps
};

/// x / max(|x|, eps), with the norm along an axis. Floating dtypes. Errors as of `norm`;
/// `ValueError` for a negative eps.
SASH_API Tensor normalize(const Tensor& x, const NormalizeOptions& options = {});

}  // namespace sash
