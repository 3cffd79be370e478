#pragma once

#include "../../core/kernel.h"
#include "../../core/scalar.h"
#include "../../core/tensor_view.h"

/// What the tensor itself asks of a backend. Views may be strided; dtypes are any unless said.
namespace sash::kernels {

/// y[i] = value.
extern SASH_API Kernel<void(KernelContext&, const TensorView& y, const Scalar& value)> fill;

/// y[i] = cast(x[i]): shapes equal, dtypes free. x may be broadcast (stride 0), y may not.
/// Floating to integer truncates; to bool is x != 0.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)> copy;

/// y[i] += x[i]: shapes and floating dtypes equal.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y)> accumulate;

/// y[i] = start + i step, i the row-major index.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& y, const Scalar& start, const Scalar& step)>
        arange;

}  // namespace sash::kernels
