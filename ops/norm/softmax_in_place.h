#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// x <- softmax(x) along `axis` (see `softmax`), in place: a row of only -inf becomes zeros.
/// Returns x. Rows that lie one after the other are replaced where they are; others, and halves on
/// the CPU, go through scratch memory of at most 8 Mi elements, 1/2 Mi on the CPU (or one row).
///
/// Recorded without a copy: the gradient needs the result alone. Writing to that before the
/// backward pass makes the pass throw. `DTypeError`, `IndexError` as `softmax`; `ValueError` for an
/// expanded x, `AutogradError` for a leaf that requires grad, unless under `NoGradGuard`.
SASH_API Tensor softmax_(Tensor x, int64_t axis = -1);

/// The gradient of o = softmax(s) v with respect to s, in the place of the probabilities p:
///
///     p <- (dp - sum(p dp, -1)) p  with  dp = d_out v'
///
/// p [..., L, S], d_out [..., L, D], v [..., S, D], whose leading axes broadcast to p's. Returns p.
/// dp, rounded to the dtype that it is computed in, is made in blocks of at most 8 Mi elements, 1/2
/// Mi on the CPU (or one row). Floating dtypes, which may differ: then it is computed in the widest
/// of them, and rounded once to p's.
///
/// If recorded, the old p is kept: a clone. `ShapeError` unless the shapes fit, and for the rest as
/// `softmax_`.
SASH_API Tensor softmax_backward_(Tensor p, const Tensor& d_out, const Tensor& v);

namespace composite {
/// `softmax_backward_` from plain ops, not in place.
SASH_API Tensor softmax_backward(const Tensor& p, const Tensor& d_out, const Tensor& v);
}  // namespace composite

}  // namespace sash
