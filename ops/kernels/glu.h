#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

/// Gated linear units: see `GluKind`. Views are contiguous and of one floating dtype: x and dx
/// [R, 2 F], rows of F gates and then F values; y and g [R, F].
namespace sash::kernels {

enum class Gate { silu, gelu, gelu_tanh, clamped_silu };

/// The limit and the slope of `clamped_silu`.
inline constexpr double kGateLimit = 7, kGateSlope = 1.702;

extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& y, Gate gate)>
    glu_forward;

/// dx may not be x.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& g,
                            const TensorView& dx, Gate gate)>
    glu_backward;

}  // namespace sash::kernels
