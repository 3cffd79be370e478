#include "nll_loss.h"

#include "../index/index_checks.h"
#include "../op.h"
#include "class_targets.h"

namespace sash {

Tensor nll_loss(const Tensor& logp, const Tensor& targets, const NLLLossOptions& options) {
  constexpr const char* op = "nll_loss";
  if (Autocast cast(op); cast) return nll_loss(cast(logp), targets, options);
  const int axis = check_class_targets(op, logp, targets, options.weight, options.class_axis);
  check_index_values(op, targets.contiguous(), logp.size(axis), options.ignore_index);
  const DType dtype = *row_statistics(logp).dtype;
  const Tensor weight = options.weight.defined() ? options.weight.detach().to(dtype) : Tensor();
  const auto [losses, total] =
      class_terms(classes_last(logp, axis).to(dtype), targets, weight, options.ignore_index);
  return reduced(losses, total, options.reduction).to(logp.dtype());
}

}  // namespace sash
