#include "sort.h"

#include "../kernels/index.h"
#include "../op.h"
#include "gather.h"

namespace sash {

constinit decltype(kernels::topk) kernels::topk{"topk"};

namespace {

/// The axis, after the checks of the tensor.
int checked_order_axis(const char* op, const Tensor& x, int64_t axis) {
  check_not_bool(op, x);
  check_min_rank(op, x, 1);
  return normalize_axis(axis, x.rank(), op);
}

/// The first `count` elements along `axis` in descending or ascending order, recorded.
Chosen first_in_order(const char* op, const Tensor& x, int64_t count, int axis, bool descending) {
  if (x.dtype() == DType::uint8) {
    const Chosen wide = first_in_order(op, x.to(DType::int32), count, axis, descending);
    return {wide.values.to(DType::uint8), wide.indices};
  }
  Shape shape = x.shape();
  shape[axis] = count;
  const Tensor values = empty(shape, x.options());
  const Tensor indices = empty(shape, {.dtype = DType::int64, .device = x.device()});
  run_kernel(kernels::topk, x, values, indices, axis, descending);
  record(op, {x}, values,
         [from = x.shape(), axis, indices = save(indices)](Backward& pass, const Tensor& g) {
           return Gradients{scatter_add(zeros(from, g.options()), axis, pass(indices), g)};
         });
  return {values, indices};
}

Chosen first_extremum(const char* op, Tensor (*position)(const Tensor&, int64_t, bool),
                      const Tensor& x, int64_t axis, bool keepdim) {
  const int at = checked_order_axis(op, x, axis);
  if (x.shape()[at] == 0) throw ShapeError(op, "an axis that is not empty", to_string(x.shape()));
  const Tensor indices = unrecorded([&] { return position(x, at, true); });
  const Tensor values = gather(x, at, indices);
  if (keepdim) return {values, indices};
  return {values.squeeze(at), indices.squeeze(at)};
}

}  // namespace

Chosen topk(const Tensor& x, int64_t k, int64_t axis, bool largest) {
  const int at = checked_order_axis("topk", x, axis);
  if (k < 0 || k > x.shape()[at]) {
    throw ValueError("topk", "k in [0, " + std::to_string(x.shape()[at]) + "]", std::to_string(k));
  }
  return first_in_order("topk", x, k, at, largest);
}

Chosen sort(const Tensor& x, int64_t axis, bool descending) {
  const int at = checked_order_axis("sort", x, axis);
  return first_in_order("sort", x, x.shape()[at], at, descending);
}

Tensor argsort(const Tensor& x, int64_t axis, bool descending) {
  const int at = checked_order_axis("argsort", x, axis);
  const NoGradGuard no_grad;
  return first_in_order("argsort", x, x.shape()[at], at, descending).indices;
}

Chosen max(const Tensor& x, int64_t axis, bool keepdim) {
  return first_extremum("max", argmax, x, axis, keepdim);
}

Chosen min(const Tensor& x, int64_t axis, bool keepdim) {
  return first_extremum("min", argmin, x, axis, keepdim);
}

Tensor max(const Tensor& x) { return amax(x); }
Tensor min(const Tensor& x) { return amin(x); }

Chosen Tensor::topk(int64_t k, int64_t axis, bool largest) const {
  return sash::topk(*this, k, axis, largest);
}
Chosen Tensor::sort(int64_t axis, bool descending) const {
  return sash::sort(*this, axis, descending);
}
Tensor Tensor::argsort(int64_t axis, bool descending) const {
  return sash::argsort(*this, axis, descending);
}
Chosen Tensor::max(int64_t axis, bool keepdim) const { return sash::max(*this, axis, keepdim); }
Chosen Tensor::min(int64_t axis, bool keepdim) const { return sash::min(*this, axis, keepdim); }
Tensor Tensor::max() const { return sash::max(*this); }
Tensor Tensor::min() const { return sash::min(*this); }

}  // namespace sash
