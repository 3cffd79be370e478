#pragma once

#include "../../core/kernel.h"
#include "../../core/scalar.h"
#include "../../core/tensor_view.h"

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
