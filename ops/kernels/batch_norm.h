#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

namespace sash::kernels {

/// y = (x - mean) scale + shift: x and y are [N, C, L], the others [C], all contiguous and of one
/// dtype, float32 or float64. y may be x.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& mean,
                            const TensorView& scale, const TensorView& shift, const TensorView& y)>
    scale_channels;

}  // namespace sash::kernels
