#pragma once

#include <array>

#include "../../core/philox.h"
#include "../../core/scalar.h"
#include "../../tensor/kernels/view.h"
#include "elementwise_table.h"

/// One slot for each row of the table. The row names the dtypes. Results of comparisons, logic and
/// isnan are bool. Operands broadcast to y's shape, views may be strided, and y may be the same
/// view as an operand.
namespace sash::kernels {

using UnaryKernel = Kernel<void(KernelContext&, View x, View y)>;
using BinaryKernel = Kernel<void(KernelContext&, View a, View b, View y)>;
using ScalarKernel = Kernel<void(KernelContext&, View x, View y, const Scalar& value)>;

template <class Slot, class List>
using Slots = std::array<Slot, List::size>;

extern SASH_API Slots<UnaryKernel, op::UnaryOps> unary;
extern SASH_API Slots<BinaryKernel, op::ArithmeticOps> arithmetic;
extern SASH_API Slots<ScalarKernel, op::ScalarOps> arithmetic_scalar;
extern SASH_API Slots<BinaryKernel, op::CompareOps> compare;
extern SASH_API Slots<ScalarKernel, op::CompareOps> compare_scalar;

/// The slot of a row.
template <class Op>
auto& slot() {
  if constexpr (op::UnaryOps::has<Op>) {
    return unary[op::UnaryOps::index_of<Op>()];
  } else if constexpr (op::CompareOps::has<Op>) {
    return compare[op::CompareOps::index_of<Op>()];
  } else {
    return arithmetic[op::ArithmeticOps::index_of<Op>()];
  }
}

/// The slot of a row with a scalar as second operand. In arithmetic the scalar is cast to x's
/// dtype. In comparisons it is cast to a floating x's dtype; an integer or bool x is compared in
/// int64.
template <class Op>
ScalarKernel& scalar_slot() {
  if constexpr (op::CompareOps::has<Op>) {
    return compare_scalar[op::CompareOps::index_of<Op>()];
  } else {
    return arithmetic_scalar[op::ScalarOps::index_of<Op>()];
  }
}

/// y = min(max(x, low), high); NaN stays NaN. Floating dtypes, int32 and int64.
extern SASH_API Kernel<void(KernelContext&, View x, View y, const Scalar& low, const Scalar& high)>
    clamp;

/// y[i] = x[i] / (1 - p) if the 32 bits of element i (row-major) are at least
/// `dropout_threshold(p)`, else x[i] 0; zeros for p = 1. Views of one shape and floating dtype.
extern SASH_API Kernel<void(KernelContext&, View x, View y, double p, PhiloxState)> dropout;

// GELU, element by element; views of one shape and floating dtype, any strides.

/// y = x P(x), where P is the normal distribution function or, if `tanh`, its approximation
/// P(x) = (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
extern SASH_API Kernel<void(KernelContext&, View x, View y, bool tanh)> gelu_forward;

/// dx = g (P(x) + x P'(x)).
extern SASH_API Kernel<void(KernelContext&, View x, View g, View dx, bool tanh)> gelu_backward;

// Any dtype; cond and mask are bool; inputs broadcast to y's shape.

/// y[i] = cond[i] ? a[i] : b[i].
extern SASH_API Kernel<void(KernelContext&, View cond, View a, View b, View y)> where;

/// y[i] = mask[i] ? value : x[i].
extern SASH_API Kernel<void(KernelContext&, View x, View mask, View y, const Scalar& value)>
    masked_fill;

}  // namespace sash::kernels
