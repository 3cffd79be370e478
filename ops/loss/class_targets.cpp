#include "class_targets.h"

#include "../index/gather.h"
#include "../index/index_checks.h"
#include "../op.h"

namespace sash {
namespace {

std::string expected_targets(const Tensor& scores, const Tensor& targets, int axis) {
  const std::string text = "targets " + to_string(without_axis(scores, axis));
  const bool as_in_pytorch =
      scores.rank() > 2 && axis == scores.rank() - 1 && targets.shape() == without_axis(scores, 1);
  if (!as_in_pytorch) return text;
  return text + ", or class_axis = 1 for logits " +
         (scores.rank() == 3 ? "[N, C, T]" : "[N, C, ...]");
}

}  // namespace

int check_class_targets(const char* op, const Tensor& scores, const Tensor& targets,
                        const Tensor& weight, int64_t class_axis) {
  check_floating(op, scores);
  check_index_tensor(op, scores, targets, "targets");
  const int axis = check_classes(op, scores, weight, class_axis);
  if (targets.shape() != without_axis(scores, axis)) {
    throw ShapeError(op, expected_targets(scores, targets, axis), to_string(targets.shape()));
  }
  return axis;
}

int check_classes(const char* op, const Tensor& scores, const Tensor& weight, int64_t class_axis) {
  if (scores.rank() < 2) {
    throw ShapeError(op, "logits [N, C] or [..., C]", to_string(scores.shape()));
  }
  const int axis = normalize_axis(class_axis, scores.rank(), op);
  if (!weight.defined()) return axis;
  check_floating(op, weight);
  check_same_device(op, scores, weight);
  if (weight.shape() != Shape{scores.size(axis)}) {
    throw ShapeError(op, "a weight " + to_string(Shape{scores.size(axis)}),
                     to_string(weight.shape()));
  }
  return axis;
}

Tensor classes_last(const Tensor& scores, int axis) {
  return axis == scores.rank() - 1 ? scores : scores.movedim(axis, -1);
}

ClassTerms class_terms(const Tensor& scores, const Tensor& targets, const Tensor& weight,
                       int64_t ignore_index) {
  const Tensor ignored = eq(targets, ignore_index);
  const Tensor safe = masked_fill(targets, ignored, 0);
  const Tensor losses = -gather(scores, -1, safe.unsqueeze(-1)).squeeze(-1);
  if (!weight.defined()) {
    return {masked_fill(losses, ignored, 0), sum(logical_not(ignored)).to(scores.dtype())};
  }
  const Tensor weights = index_select(weight, 0, safe.flatten()).view(targets.shape());
  return {masked_fill(losses * weights, ignored, 0), sum(masked_fill(weights, ignored, 0))};
}

Tensor reduced(const Tensor& losses, const Tensor& total, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  return reduction == Reduction::sum ? sum(losses) : sum(losses) / total;
}

}  // namespace sash
