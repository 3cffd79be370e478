#pragma once

#include "../../tensor/kernels/view.h"

/// Cross entropy of the rows of logits [N, C] with class indices targets [N] (int64) and class
/// weights w [C]; a null view means ones. All views are contiguous. All views except the targets
/// have one floating dtype; weight, losses, stats and totals are float32 beside halves.
namespace sash::kernels {

/// Options of a call.
struct CrossEntropyRule {
  int64_t ignore_index;
  double smoothing;  ///< s
  bool mean;         ///< gradients are divided by totals[0]
};

/// stats [N, 2] = the row's max and log sum exp(x - max), whose sum L is the log of the partition
/// function; losses [N] = (1 - s) w_target (L - x_target) + s / C sum_c w_c (L - x_c), or 0 for an
/// ignored row; totals [2] = sum of w_target over the rows that are not ignored, and sum of w.
extern SASH_API Kernel<void(KernelContext&, View logits, View targets, View weight, View losses,
                            View stats, View totals, const CrossEntropyRule&)>
    cross_entropy_forward;

/// dlogits = g ((a + b) exp(x - L) - a [c == target] - w_c s / C) with a = (1 - s) w_target and
/// b = s / C sum w, zeros for an ignored row. g is a single element or [N].
extern SASH_API Kernel<void(KernelContext&, View logits, View targets, View weight, View stats,
                            View g, View totals, View dlogits, const CrossEntropyRule&)>
    cross_entropy_backward;

/// Losses as above without class weights, and over the logits the gradients of their sum, whatever
/// `mean` says. `first` is the number of the first row, for errors.
extern SASH_API Kernel<void(KernelContext&, View logits, View targets, View losses,
                            const CrossEntropyRule&, int64_t first)>
    cross_entropy_in_place;

/// y = x factor, rounded once. x has the dtype of y or, beside halves, float32, and factor, a view
/// of their shape, is wide like that. A backend without a kernel here multiplies and casts.
extern SASH_API Kernel<void(KernelContext&, View x, View factor, View y)> scale_gradient;

// Squared differences; a and b have one shape and floating dtype.

/// y = scale sum (a - b)^2, a single element; a and b are contiguous.
extern SASH_API Kernel<void(KernelContext&, View a, View b, View y, double scale)> mse_loss_forward;

/// da = 2 scale g (a - b), with g a single element.
extern SASH_API Kernel<void(KernelContext&, View a, View b, View g, View da, double scale)>
    mse_loss_backward;

}  // namespace sash::kernels
