#include "norm.h"

#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/dropout.h"

namespace sash::nn {

SumAndNorm Norm::add(const Tensor& branch, const Tensor& residual, double p) {
  if (!has_forward_hooks()) {
    return named_errors([&] { return add_and_normalise(branch, residual, p); });
  }
  const Tensor sum = residual + dropout(branch, p);
  return {sum, (*this)(sum)};
}

}  // namespace sash::nn
