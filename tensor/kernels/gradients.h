#pragma once

#include "view.h"

/// Kernels that the backward pass itself needs: sums of gradients.
namespace sash::kernels {

/// y[i] = a[i] + b[i]: shapes and floating dtypes equal; y may be the same view as a.
extern SASH_API Kernel<void(KernelContext&, View a, View b, View y)> accumulate;

/// y = sum of x over the axes where y has extent 1; ranks equal. Floating inputs accumulate in at
/// least float32, in an order that depends on the shape alone; y has x's dtype, or int64 for
/// integers and bool, or float32 for halves.
extern SASH_API Kernel<void(KernelContext&, View x, View y)> sum;

}  // namespace sash::kernels
