#include "dropout.h"

#include "../../tensor/autograd/gradient_memory.h"
#include "../../tensor/kernels/random.h"
#include "../kernels/elementwise.h"
#include "../op.h"
#include "dropout_state.h"

namespace sash {

constinit decltype(kernels::dropout) kernels::dropout{"dropout"};

namespace {

void check_dropout(const char* op, const Tensor& x, double p) {
  check_floating(op, x);
  check_probability(op, "a probability", p);
}

}  // namespace

Tensor composite::dropout_with(const Tensor& x, double p, PhiloxState state) {
  if (p == 1) return x * 0;
  // Uniform numbers in float64 are the 32 bits themselves, times 2^-32.
  const Tensor u = empty(x.shape(), {.dtype = DType::float64, .device = x.device()});
  run_kernel(kernels::random_uniform, u, state, 0, 1);
  return x * (ge(u, dropout_threshold(p) * 0x1p-32).to(x.dtype()) * (1 / (1 - p)));
}

Tensor dropout_with(const Tensor& x, double p, PhiloxState state) {
  check_dropout("dropout", x, p);
  if (!use_fused(kernels::dropout, x.device())) return composite::dropout_with(x, p, state);
  const Tensor y = empty_like(x);
  run_kernel(kernels::dropout, x, y, p, state);
  return record("dropout", {x}, y, [p, state](Backward& pass, const Tensor& g) {
    if (pass.create_graph()) return Gradients{dropout_with(g, p, state)};
    const Tensor dx = overwritable(g);
    run_kernel(kernels::dropout, g, dx, p, state);
    return Gradients{dx};
  });
}

Tensor dropout(const Tensor& x, double p, bool training) {
  check_dropout("dropout", x, p);
  if (!training || p == 0) return x;
  return dropout_with(x, p, next_philox(x.device(), x.numel()));
}

Tensor seeded_dropout(const Tensor& x, double p, Generator& generator) {
  check_dropout("seeded_dropout", x, p);
  return dropout_with(x, p, generator.next(x.device(), x.numel()));
}

DropoutResult dropout_with_mask(const Tensor& x, double p, Generator& generator) {
  check_dropout("dropout_with_mask", x, p);
  const PhiloxState start = generator.next(x.device(), x.numel());
  const Tensor mask =
      unrecorded([&] { return ne(dropout_with(ones(x.shape(), x.options()), p, start), 0); });
  return {dropout_with(x, p, start), mask};
}

Tensor apply_dropout_mask(const Tensor& x, const Tensor& mask, double p) {
  const char* op = "apply_dropout_mask";
  check_dropout(op, x, p);
  check_defined(op, mask, "a mask");
  check_same_device(op, x, mask);
  check_dtype(op, mask, DType::boolean);
  check_same_shape(op, x, mask);
  return masked_fill(mul(x, p < 1 ? 1 / (1 - p) : 0), logical_not(mask), 0);
}

}  // namespace sash
