#pragma once

#include "../../tensor/kernels/view.h"

namespace sash::kernels {

/// y = (x - mean) scale + shift: x and y are [N, C, L], the others [C], all contiguous and of one
/// dtype, float32 or float64. y may be x.
extern SASH_API Kernel<void(KernelContext&, View x, View mean, View scale, View shift, View y)>
    scale_channels;

}  // namespace sash::kernels
