#pragma once

#include "../../tensor/tensor.h"

namespace sash {

class Generator;

/// The numbers 0 to n - 1 in random order, int64 on `options.device`. A generator gives the same
/// order on every device. `ValueError` for a negative n, `DTypeError` for another dtype.
SASH_API Tensor randperm(int64_t n, const TensorOptions& options = {});
SASH_API Tensor randperm(int64_t n, Generator& generator, const TensorOptions& options = {});

}  // namespace sash
