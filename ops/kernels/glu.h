#pragma once

#include "../../tensor/kernels/view.h"

/// Gated linear units: see `GluKind`. Views are contiguous and of one floating dtype: x and dx
/// [R, 2 F], rows of F gates and then F values; y and g [R, F].
namespace sash::kernels {

enum class Gate { silu, gelu, gelu_tanh, clamped_silu };

/// The limit and the slope of the clamped gate, `clamped_silu`.
inline constexpr double kGateLimit = 7, kGateSlope = 1.702;

extern SASH_API Kernel<void(KernelContext&, View x, View y, Gate gate)> glu_forward;

/// dx may not be x.
extern SASH_API Kernel<void(KernelContext&, View x, View g, View dx, Gate gate)> glu_backward;

}  // namespace sash::kernels
