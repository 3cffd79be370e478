#include "dropout_state.h"

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "binary.h"
#include "compare.h"
#include "where.h"

namespace sash {
namespace {

void check_arguments(const char* op, const Tensor& x, double p) {
  check_defined(op, x);
  check_floating(op, x);
  check_probability(op, "a probability", p);
}

}  // namespace

Tensor seeded_dropout(const Tensor& x, double p, Generator& generator) {
  check_arguments("seeded_dropout", x, p);
  return dropout_with(x, p, generator.next(x.device(), x.numel()));
}

DropoutResult dropout_with_mask(const Tensor& x, double p, Generator& generator) {
  check_arguments("dropout_with_mask", x, p);
  const PhiloxState start = generator.next(x.device(), x.numel());
  const Tensor mask = [&] {
    const NoGradGuard no_grad;
    return ne(dropout_with(ones(x.shape(), x.options()), p, start), 0);
  }();
  return {dropout_with(x, p, start), mask};
}

Tensor apply_dropout_mask(const Tensor& x, const Tensor& mask, double p) {
  const char* op = "apply_dropout_mask";
  check_arguments(op, x, p);
  check_defined(op, mask, "a mask");
  check_same_device(op, x, mask);
  check_dtype(op, mask, DType::boolean);
  check_same_shape(op, x, mask);
  return masked_fill(mul(x, p < 1 ? 1 / (1 - p) : 0), logical_not(mask), 0);
}

}  // namespace sash
