#pragma once

#include "../../core/philox.h"
#include "../../tensor/tensor.h"

namespace sash {

/// y_i = m_i x_i / (1 - p) with independent m_i, 0 with probability p and 1 otherwise (Srivastava
/// et al., "Dropout", JMLR 2014); x itself if `training` is false or p is 0, zeros if p is 1.
///
/// The mask comes from the device's generator and depends on the element's row-major index
/// alone: one seed gives one mask, on every device. It is drawn again in the backward pass, not
/// stored. Floating dtypes. Throws `ValueError` unless 0 <= p <= 1.
SASH_API Tensor dropout(const Tensor& x, double p, bool training = true);

/// Dropout with the mask of `state` (see `PhiloxState`), for ops that must draw a mask twice.
SASH_API Tensor dropout_with(const Tensor& x, double p, PhiloxState state);

namespace composite {
/// `dropout_with` from plain ops.
SASH_API Tensor dropout_with(const Tensor& x, double p, PhiloxState state);
}  // namespace composite

}  // namespace sash
