#pragma once

#include "../../tensor/tensor.h"

namespace sash {

/// Gated linear units (Shazeer, "GLU variants improve transformer", 2020): the result of `glu` for
/// a gate a and a value b.
enum class GluKind {
  swiglu,      ///< a sigmoid(a) b
  geglu,       ///< gelu(a) b
  geglu_tanh,  ///< gelu(a) b with the tanh formula of `GeluApproximation`
  /// c sigmoid(1.702 c) (d + 1) with c = min(a, 7) and d = b clamped to [-7, 7] (OpenAI, "gpt-oss
  /// model card", 2025). Gradients are 0 on and beyond the limits, as in `clamp`.
  clamped_swiglu,
};

/// y [..., F] from x [..., 2 F], whose rows hold the F gates and then the F values. Floating
/// dtypes. `ShapeError` unless the last extent is even, `DTypeError`.
SASH_API Tensor glu(const Tensor& x, GluKind kind = GluKind::swiglu);

namespace composite {
/// `glu` from plain ops.
SASH_API Tensor glu(const Tensor& x, GluKind kind = GluKind::swiglu);
}  // namespace composite

}  // namespace sash
