#include "softmax_modes.h"

#include <limits>

#include "../kernels/norm.h"
#include "../op.h"
#include "softmax.h"

namespace sash {

constinit decltype(kernels::masked_softmax_forward) kernels::masked_softmax_forward{
    "masked_softmax_forward"};

namespace {

constexpr const char* kMasked = "masked_softmax";

void check_bounds(const Tensor& x, const Tensor& begin, const Tensor& end) {
  check_floating(kMasked, x);
  check_min_rank(kMasked, x, 1);
  for (const Tensor* bound : {&begin, &end}) {
    check_defined(kMasked, *bound, "bounds of the rows");
    check_same_device(kMasked, x, *bound);
    check_dtype(kMasked, *bound, DType::int32);
    const Shape rows = without_axis(x, x.rank() - 1);
    if (broadcast_shapes(bound->shape(), rows, kMasked) == rows) continue;
    throw ShapeError(kMasked, "bounds that broadcast to " + to_string(rows),
                     to_string(bound->shape()));
  }
}

}  // namespace

Tensor softmax_over(const Tensor& x, SoftmaxMode mode, SoftmaxAlgorithm algorithm) {
  check_defined("softmax_over", x);
  check_min_rank("softmax_over", x, 2);
  const bool log = algorithm == SoftmaxAlgorithm::log;
  if (mode == SoftmaxMode::channel) return log ? log_softmax(x, 1) : softmax(x, 1);
  const Tensor rows = x.flatten(1);
  return (log ? log_softmax(rows) : softmax(rows)).view(x.shape());
}

Tensor composite::masked_softmax(const Tensor& x, const Tensor& begin, const Tensor& end) {
  const Tensor column = arange(0, x.size(-1), 1, {.dtype = DType::int32, .device = x.device()});
  const Tensor hidden = logical_or(lt(column, begin.unsqueeze(-1)), ge(column, end.unsqueeze(-1)));
  const double lowest = -std::numeric_limits<double>::infinity();
  return composite::softmax(masked_fill(x, hidden.expand(x.shape()), lowest));
}

Tensor masked_softmax(const Tensor& x, const Tensor& begin, const Tensor& end) {
  check_bounds(x, begin, end);
  if (!use_fused(kernels::masked_softmax_forward, x.device())) {
    return composite::masked_softmax(x, begin, end);
  }
  const Tensor input = x.contiguous();
  const Tensor y = empty_like(input);
  {
    const NoGradGuard no_grad;
    const Tensor first = begin.expand(without_axis(x, x.rank() - 1)).contiguous();
    const Tensor past = end.expand(without_axis(x, x.rank() - 1)).contiguous();
    const int64_t rows = first.numel(), n = x.size(-1);
    run_kernel(kernels::masked_softmax_forward, matrix_view(input, rows, n), vector_view(first),
               vector_view(past), matrix_view(y, rows, n));
  }
  // Outside the ranges y is 0, and so is the gradient of softmax.
  return record(kMasked, {input}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    const Tensor p = pass(y);
    if (pass.create_graph()) return Gradients{p * (g - sum(g * p, {-1}, true))};
    const Tensor dx = empty_like(p);
    run_kernel(kernels::softmax_backward, p, g.contiguous(), dx);
    return Gradients{dx};
  });
}

}  // namespace sash
