#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

namespace sash::kernels {

struct RotaryParams {
  int64_t heads = 0;  ///< heads [0, heads) are turned, the others copied
  bool interleaved = false;
  bool back = false;  ///< turn by the negative angles
};

/// Turns pairs of features of x [B, S, H, D] by the angles of their positions, into y of the same
/// shape: of the first 2 n features, pairs i and i + n, or 2 i and 2 i + 1 if interleaved. The
/// others are copied. x and y are of one floating dtype, have unit stride along the last axis and
/// are one view or do not overlap; cos and sin [B or 1, S, n] are contiguous in their last two
/// axes, float64 beside float64 and else float32.
extern SASH_API Kernel<void(KernelContext&, const TensorView& x, const TensorView& cos,
                            const TensorView& sin, const TensorView& y, const RotaryParams&)>
    rotary;

}  // namespace sash::kernels
