#include "softmax.h"

#include <limits>

#include "../elementwise/binary.h"
#include "../elementwise/compare.h"
#include "../elementwise/unary.h"
#include "../elementwise/where.h"
#include "../kernels/norm.h"
#include "../op.h"
#include "../reduce/reduce.h"

namespace sash {

namespace kernels {
constinit decltype(softmax_forward) softmax_forward{"softmax_forward"};
constinit decltype(softmax_backward) softmax_backward{"softmax_backward"};
constinit decltype(log_softmax_forward) log_softmax_forward{"log_softmax_forward"};
constinit decltype(log_softmax_backward) log_softmax_backward{"log_softmax_backward"};
}  // namespace kernels

namespace {

using ForwardKernel = Kernel<void(KernelContext&, const TensorView&, const TensorView&)>;
using BackwardKernel =
    Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&)>;

int checked_axis(const char* op, const Tensor& x, int64_t axis) {
  check_floating(op, x);
  return normalize_axis(axis, x.rank(), op);
}

Tensor run(const ForwardKernel& kernel, const Tensor& x) {
  Tensor y = empty_like(x);
  run_kernel(kernel, x, y);
  return y;
}

Tensor run(const BackwardKernel& kernel, const Tensor& y, const Tensor& g) {
  Tensor dx = empty_like(y);
  run_kernel(kernel, y, g.contiguous(), dx);
  return dx;
}

// x less its maximum along `axis`, which is taken as 0 where it is -inf.
Tensor shifted(const Tensor& x, int64_t axis) {
  const Tensor max = amax(x.detach(), {axis}, true);
  return x - masked_fill(max, eq(max, -std::numeric_limits<double>::infinity()), 0);
}

}  // namespace

namespace composite {

Tensor softmax(const Tensor& x, int64_t axis) {
  if (x.numel() == 0) return x.clone();
  const Tensor e = exp(shifted(x, axis));
  const Tensor total = sum(e, {axis}, true);
  return e / masked_fill(total, eq(total, 0), 1);
}

Tensor log_softmax(const Tensor& x, int64_t axis) {
  if (x.numel() == 0) return x.clone();
  const Tensor z = shifted(x, axis);
  const Tensor total = sum(exp(z), {axis}, true);
  return z - log(masked_fill(total, eq(total, 0), 1));
}

}  // namespace composite

Tensor softmax(const Tensor& x, int64_t axis) {
  if (Autocast cast("softmax"); cast) return softmax(cast(x), axis);
  const int last = checked_axis("softmax", x, axis);
  if (last != x.rank() - 1) return softmax(x.transpose(last, -1)).transpose(last, -1).contiguous();
  if (!use_fused(kernels::softmax_forward, x.device())) return composite::softmax(x);
  const Tensor rows = x.contiguous();
  const Tensor y = run(kernels::softmax_forward, rows);
  return record("softmax", {rows}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    const Tensor p = pass(y);
    if (!pass.create_graph() && use_fused(kernels::softmax_backward, g.device())) {
      return Gradients{run(kernels::softmax_backward, p, g)};
    }
    return Gradients{p * (g - sum(g * p, {-1}, true))};
  });
}

Tensor log_softmax(const Tensor& x, int64_t axis) {
  if (Autocast cast("log_softmax"); cast) return log_softmax(cast(x), axis);
  const int last = checked_axis("log_softmax", x, axis);
  if (last != x.rank() - 1)
    return log_softmax(x.transpose(last, -1)).transpose(last, -1).contiguous();
  if (!use_fused(kernels::log_softmax_forward, x.device())) return composite::log_softmax(x);
  const Tensor rows = x.contiguous();
  const Tensor y = run(kernels::log_softmax_forward, rows);
  return record("log_softmax", {rows}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
    const Tensor logp = pass(y);
    if (!pass.create_graph() && use_fused(kernels::log_softmax_backward, g.device())) {
      return Gradients{run(kernels::log_softmax_backward, logp, g)};
    }
    return Gradients{g - exp(logp) * sum(g, {-1}, true)};
  });
}

Tensor Tensor::softmax(int64_t axis) const { return sash::softmax(*this, axis); }
Tensor Tensor::log_softmax(int64_t axis) const { return sash::log_softmax(*this, axis); }

}  // namespace sash
