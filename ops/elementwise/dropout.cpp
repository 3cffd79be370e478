#include "dropout.h"

#include "../../tensor/autograd/gradient_memory.h"
#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../../tensor/kernels/random.h"
#include "../../tensor/random.h"
#include "../checks.h"
#include "../kernels/elementwise.h"
#include "binary.h"
#include "compare.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, double, PhiloxState)>
    dropout{"dropout"};
}  // namespace kernels

namespace {

void check_arguments(const Tensor& x, double p) {
  check_defined("dropout", x);
  check_floating("dropout", x);
  if (!(p >= 0 && p <= 1)) {
    throw ValueError("dropout", "a probability in [0, 1]", to_text(p));
  }
}

void run(const Tensor& x, const Tensor& y, double p, PhiloxState state) {
  KernelContext context = kernel_context(x.device());
  kernels::dropout(context, x.tensor_view(), y.tensor_view(), p, state);
}

}  // namespace

namespace composite {

Tensor dropout_with(const Tensor& x, double p, PhiloxState state) {
  if (p == 1) return x * 0;
  // Uniform numbers in float64 are the 32 bits themselves, times 2^-32.
  const Tensor u = empty(x.shape(), {.dtype = DType::float64, .device = x.device()});
  KernelContext context = kernel_context(x.device());
  kernels::random_uniform(context, u.tensor_view(), state, 0, 1);
  return x * (ge(u, dropout_threshold(p) * 0x1p-32).to(x.dtype()) * (1 / (1 - p)));
}

}  // namespace composite

Tensor dropout_with(const Tensor& x, double p, PhiloxState state) {
  check_arguments(x, p);
  if (!use_fused(kernels::dropout, x.device())) return composite::dropout_with(x, p, state);
  const Tensor y = empty_like(x);
  run(x, y, p, state);
  return record("dropout", {x}, y, [p, state](Backward& pass, const Tensor& g) {
    if (pass.create_graph()) return Gradients{dropout_with(g, p, state)};
    const Tensor dx = overwritable(g);
    run(g, dx, p, state);
    return Gradients{dx};
  });
}

Tensor dropout(const Tensor& x, double p, bool training) {
  check_arguments(x, p);
  if (!training || p == 0) return x;
  return dropout_with(x, p, next_philox(x.device(), x.numel()));
}

}  // namespace sash
