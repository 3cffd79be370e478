#pragma once

#include "../../tensor/tensor.h"

/// What losses over classes share: scores [N, C] or [B, T, C] with int64 targets of the other axes.
namespace sash {

/// Throws unless scores, targets and class weights ([C], or undefined) fit together; returns the
/// axis of the classes, not negative.
int check_class_targets(const char* op, const Tensor& scores, const Tensor& targets,
                        const Tensor& weight, int64_t class_axis);

/// The scores with their classes last, as kernels read them.
Tensor classes_last(const Tensor& scores, int axis);

/// Sums of terms over rows, with what their mean is over.
struct ClassTerms {
  Tensor losses;  ///< of the targets' shape, 0 where ignored
  Tensor total;   ///< sum of the weights of the targets that are not ignored, a scalar
};

/// Of each row, -weight[target] scores[target]; from plain ops. Classes are last.
ClassTerms class_terms(const Tensor& scores, const Tensor& targets, const Tensor& weight,
                       int64_t ignore_index);

}  // namespace sash
