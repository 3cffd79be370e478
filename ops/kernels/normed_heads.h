#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

/// Root mean square norms of packed queries and keys, each head by itself, and their rotation. x,
/// y, g and dx are [B, S, N, D], N = heads + 2 kv_heads, rstd [B, S, heads + kv_heads] (float32
/// beside halves), weights [D]; all are contiguous and, but for rstd and the angles, of one
/// floating dtype. A head is 2^k, k from 0 to 5, pairs of vectors of 16 bytes. cos and sin [B or 1,
/// S, D / 2] are contiguous in their last two axes, float64 beside float64 and else float32; null
/// views: nothing is rotated.
namespace sash::kernels {

struct NormedHeadsParams {
  int64_t heads = 0, kv_heads = 0;
  double eps = 0;
  bool unit_offset = false;  ///< w is 1 + weight
};

/// y = x rstd w with rstd = 1 / sqrt(mean(x^2) + eps) of each head, w that of queries or of keys,
/// then pairs i and i + D / 2 turned by the angles. The values are copied.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& x, const TensorView& q_weight,
                const TensorView& k_weight, const TensorView& cos, const TensorView& sin,
                const TensorView& y, const TensorView& rstd, const NormedHeadsParams&)>
        normed_heads_forward;

/// The gradients of x and of both weights; dx may be g, and the weights' may be null views.
extern SASH_API
    Kernel<void(KernelContext&, const TensorView& x, const TensorView& q_weight,
                const TensorView& k_weight, const TensorView& rstd, const TensorView& cos,
                const TensorView& sin, const TensorView& g, const TensorView& dx,
                const TensorView& dq_weight, const TensorView& dk_weight, const NormedHeadsParams&)>
        normed_heads_backward;

}  // namespace sash::kernels
