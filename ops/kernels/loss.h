#pragma once

#include "../../core/backend/kernel.h"
#include "../../core/backend/tensor_view.h"

/// Cross entropy of the rows of logits [N, C] with class indices targets [N] (int64). All views are
/// contiguous and, but for the targets, of one floating dtype; losses, stats and count are float32
/// beside halves.
namespace sash::kernels {

/// What the rows of a call have in common.
struct CrossEntropyRule {
  int64_t ignore_index;
  double smoothing;  ///< s
};

/// stats [N, 2] = the row's max and log sum exp(x - max), whose sum L is the log of the partition
/// function; losses [N] = (1 - s) (L - x_target) + s (L - mean x), or 0 for an ignored row; count
/// (a single element) = the number of rows that are not ignored.
extern SASH_API Kernel<void(KernelContext&, const TensorView& logits, const TensorView& targets,
                            const TensorView& losses, const TensorView& stats,
                            const TensorView& count, const CrossEntropyRule&)>
    cross_entropy_forward;

/// dlogits = g / count (exp(x - L) - (1 - s) [c == target] - s / C), zeros for an ignored row. g is
/// a single element or [N]; count is a single element or the null view (1).
extern SASH_API Kernel<void(KernelContext&, const TensorView& logits, const TensorView& targets,
                            const TensorView& stats, const TensorView& g, const TensorView& count,
                            const TensorView& dlogits, const CrossEntropyRule&)>
    cross_entropy_backward;

}  // namespace sash::kernels

/// Squared differences; a and b have one shape and floating dtype.
namespace sash::kernels {

/// y = scale sum (a - b)^2, a single element; a and b are contiguous.
extern SASH_API Kernel<void(KernelContext&, const TensorView& a, const TensorView& b,
                            const TensorView& y, double scale)>
    mse_loss_forward;

/// da = 2 scale g (a - b), with g a single element.
extern SASH_API Kernel<void(KernelContext&, const TensorView& a, const TensorView& b,
                            const TensorView& g, const TensorView& da, double scale)>
    mse_loss_backward;

}  // namespace sash::kernels
