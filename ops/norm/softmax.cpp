#include "softmax.h"

#include <limits>

#include "../kernels/norm.h"
#include "../op.h"

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

/// A function of the rows along the last axis.
struct RowFunction {
  const char* name;
  const ForwardKernel& forward;
  const BackwardKernel& backward;
  Tensor (*composite)(const Tensor& x, int64_t axis);
  Tensor (*gradient)(const Tensor& y, const Tensor& g);  ///< from plain ops
};

Tensor over_last_axis(const RowFunction& f, const Tensor& x, int64_t axis) {
  if (Autocast cast(f.name); cast) return over_last_axis(f, cast(x), axis);
  check_floating(f.name, x);
  const int last = normalize_axis(axis, x.rank(), f.name);
  if (last != x.rank() - 1) {
    return over_last_axis(f, x.transpose(last, -1), -1).transpose(last, -1).contiguous();
  }
  if (!use_fused(f.forward, x.device())) return f.composite(x, -1);
  const Tensor rows = x.contiguous();
  const Tensor y = run(f.forward, rows);
  return record(f.name, {rows}, y, [f, y = save_output(y)](Backward& pass, const Tensor& g) {
    const Tensor out = pass(y);
    const bool fused = !pass.create_graph() && use_fused(f.backward, g.device());
    return Gradients{fused ? run(f.backward, out, g) : f.gradient(out, g)};
  });
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
  return over_last_axis(
      {"softmax", kernels::softmax_forward, kernels::softmax_backward, composite::softmax,
       [](const Tensor& p, const Tensor& g) { return p * (g - sum(g * p, {-1}, true)); }},
      x, axis);
}

Tensor log_softmax(const Tensor& x, int64_t axis) {
  return over_last_axis(
      {"log_softmax", kernels::log_softmax_forward, kernels::log_softmax_backward,
       composite::log_softmax,
       [](const Tensor& logp, const Tensor& g) { return g - exp(logp) * sum(g, {-1}, true); }},
      x, axis);
}

Tensor Tensor::softmax(int64_t axis) const { return sash::softmax(*this, axis); }
Tensor Tensor::log_softmax(int64_t axis) const { return sash::log_softmax(*this, axis); }

}  // namespace sash
