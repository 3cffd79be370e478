#pragma once

#include "reduction.h"

/// Helpers of losses over classes: scores [N, C] or [..., C] with int64 targets [N] or [...].
namespace sash {

/// Throws unless scores, targets and class weights ([C], or undefined) fit together; returns the
/// axis of the classes, not negative.
int check_class_targets(const char* op, const Tensor& scores, const Tensor& targets,
                        const Tensor& weight, int64_t class_axis);

/// The same without targets.
int check_classes(const char* op, const Tensor& scores, const Tensor& weight, int64_t class_axis);

/// The scores with their classes last, as kernels read them.
Tensor classes_last(const Tensor& scores, int axis);

/// The loss of each row, and the divisor of their mean.
struct ClassTerms {
  Tensor losses;  ///< of the targets' shape, 0 where ignored
  Tensor total;   ///< sum of the weights of the targets that are not ignored, a scalar
};

/// The loss of a row is -weight[target] scores[target], from plain ops. Classes are the last axis.
ClassTerms class_terms(const Tensor& scores, const Tensor& targets, const Tensor& weight,
                       int64_t ignore_index);

/// The losses as `reduction` says; their mean is their sum divided by `total`.
Tensor reduced(const Tensor& losses, const Tensor& total, Reduction reduction);

}  // namespace sash
