#pragma once

#include "../../core/kernel.h"
#include "../../core/philox.h"
#include "../../core/scalar.h"
#include "../../core/tensor_view.h"

/// y[i] = f(a[i], b[i]): dtypes equal, a and b broadcast to y's shape; y may be the same view as a
/// or b. Floating dtypes, int32 and int64, unless said otherwise.
namespace sash::kernels {

using BinaryKernel =
    Kernel<void(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y)>;

extern SASH_API BinaryKernel add;
extern SASH_API BinaryKernel sub;
extern SASH_API BinaryKernel mul;
extern SASH_API BinaryKernel div;  ///< floating
extern SASH_API BinaryKernel pow;  ///< floating
extern SASH_API BinaryKernel maximum;
extern SASH_API BinaryKernel minimum;

}  // namespace sash::kernels

/// y[i] = relation(a[i], b[i]) as bool: a and b of one dtype, whichever,
/// broadcast to y's shape. NaN is unequal to everything.
namespace sash::kernels {

using CompareKernel =
    Kernel<void(KernelContext&, const TensorView& a, const TensorView& b, const TensorView& y)>;
using CompareScalarKernel =
    Kernel<void(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& value)>;

extern SASH_API CompareKernel eq;
extern SASH_API CompareKernel ne;
extern SASH_API CompareKernel lt;
extern SASH_API CompareKernel le;
extern SASH_API CompareKernel gt;
extern SASH_API CompareKernel ge;

// The value takes a floating x's dtype; an integer or bool x is compared in int64.
extern SASH_API CompareScalarKernel eq_scalar;
extern SASH_API CompareScalarKernel ne_scalar;
extern SASH_API CompareScalarKernel lt_scalar;
extern SASH_API CompareScalarKernel le_scalar;
extern SASH_API CompareScalarKernel gt_scalar;
extern SASH_API CompareScalarKernel ge_scalar;

extern SASH_API CompareKernel logical_and;  ///< bool
extern SASH_API CompareKernel logical_or;   ///< bool
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)>
    logical_not;  ///< bool
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)>
    isnan;  ///< x floating

}  // namespace sash::kernels

namespace sash::kernels {

/// y[i] = x[i] / (1 - p) if the 32 bits of element i (row-major) are at least
/// `dropout_threshold(p)`, else x[i] 0; zeros for p = 1. Views of one shape and floating dtype.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& x, const TensorView& y, double p, PhiloxState)>
        dropout;

}  // namespace sash::kernels

/// GELU, element by element; views of one shape and floating dtype, any strides.
namespace sash::kernels {

/// y = x P(x), where P is the normal distribution function or, if `tanh`, its approximation
/// P(x) = (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y, bool tanh)>
    gelu_forward;

/// dx = g (P(x) + x P'(x)).
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& g,
                            const TensorView& dx, bool tanh)>
    gelu_backward;

}  // namespace sash::kernels

/// y[i] = f(x[i]): shapes and dtypes equal, views may be strided, y may be the same view as x.
namespace sash::kernels {

using UnaryKernel = Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)>;
using ScalarKernel =
    Kernel<void(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& value)>;

// Floating dtypes, int32 and int64.
extern SASH_API UnaryKernel neg;
extern SASH_API UnaryKernel abs;
extern SASH_API UnaryKernel sign;  ///< NaN stays NaN
extern SASH_API UnaryKernel square;
extern SASH_API ScalarKernel add_scalar;
extern SASH_API ScalarKernel mul_scalar;
/// y = min(max(x, low), high); NaN stays NaN.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y,
                            const Scalar& low, const Scalar& high)>
    clamp;

// Floating dtypes.
extern SASH_API UnaryKernel exp;
extern SASH_API UnaryKernel log;
extern SASH_API UnaryKernel log1p;
extern SASH_API UnaryKernel expm1;
extern SASH_API UnaryKernel sqrt;
extern SASH_API UnaryKernel rsqrt;
extern SASH_API UnaryKernel reciprocal;
extern SASH_API UnaryKernel sin;
extern SASH_API UnaryKernel cos;
extern SASH_API UnaryKernel tanh;
extern SASH_API UnaryKernel sigmoid;
extern SASH_API UnaryKernel erf;
extern SASH_API UnaryKernel relu;
extern SASH_API UnaryKernel silu;
extern SASH_API UnaryKernel floor;
extern SASH_API ScalarKernel div_scalar;
extern SASH_API ScalarKernel pow_scalar;

/// out = g where not y <= 0, else 0.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& g, const TensorView& y, const TensorView& out)>
        relu_backward;

}  // namespace sash::kernels

/// Any dtype; cond and mask are bool; inputs broadcast to y's shape.
namespace sash::kernels {

/// y[i] = cond[i] ? a[i] : b[i].
extern SASH_API Kernel<void(KernelContext&, const TensorView& cond, const TensorView& a,
                            const TensorView& b, const TensorView& y)>
    where;

/// y[i] = mask[i] ? value : x[i].
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& mask,
                            const TensorView& y, const Scalar& value)>
    masked_fill;

}  // namespace sash::kernels
