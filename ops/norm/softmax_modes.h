#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// The algorithms of cuDNN's softmax. `fast` and `accurate` are one function and one kernel: the
/// shift by the maximum costs nothing there, so that `fast` does not overflow either. `log` is
/// `log_softmax`.
enum class SoftmaxAlgorithm { fast, accurate, log };

/// What one distribution spans in x [N, C, ...]: `instance`, all of an item, C and the axes after
/// it; `channel`, the C elements at each place of the other axes.
enum class SoftmaxMode { instance, channel };

/// Softmax in cuDNN's terms; x has at least two axes (`ShapeError`). Otherwise like `softmax`.
SASH_API Tensor softmax_over(const Tensor& x, SoftmaxMode mode,
                             SoftmaxAlgorithm algorithm = SoftmaxAlgorithm::accurate);

/// y_j = exp(x_j) / sum_i exp(x_i) over the columns begin <= i < end of each row of x [..., S, N];
/// the columns outside are not read, and get zeros and a zero gradient. A row with an empty range
/// gives zeros, as does one that is -inf throughout its range. `begin` and `end` are int32 and
/// broadcast to [..., S]; what lies outside [0, N] is cut off.
///
/// `DTypeError`, `ShapeError` or `DeviceError` for other arguments.
SASH_API Tensor masked_softmax(const Tensor& x, const Tensor& begin, const Tensor& end);

namespace composite {
/// `masked_softmax` from plain ops.
SASH_API Tensor masked_softmax(const Tensor& x, const Tensor& begin, const Tensor& end);
}  // namespace composite

}  // namespace sash
