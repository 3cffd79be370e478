#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// y_i = exp(x_i) / sum_j exp(x_j) along `axis`, shifted by the maximum; floating dtypes. The
/// result is row-major, whatever the axis.
///
/// A row whose every element is -inf (all keys masked) gives zeros and a zero gradient; any NaN
/// makes its whole row NaN. Throws `DTypeError` unless floating, `IndexError` for a bad axis.
SASH_API Tensor softmax(const Tensor& x, int64_t axis = -1);

/// y_i = x_i - log sum_j exp(x_j) along `axis`; otherwise like `softmax`. A row of only -inf
/// stays -inf, and passes its gradient on.
SASH_API Tensor log_softmax(const Tensor& x, int64_t axis = -1);

/// `softmax` and `log_softmax` from plain ops: used where a backend has no fused kernel, for second
/// derivatives, and by tests.
namespace composite {
SASH_API Tensor softmax(const Tensor& x, int64_t axis = -1);
SASH_API Tensor log_softmax(const Tensor& x, int64_t axis = -1);
}  // namespace composite

}  // namespace sash
