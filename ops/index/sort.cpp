#include "sort.h"

#include "../../tensor/autograd/grad_mode.h"
#include "../checks.h"
#include "../reduce/reduce.h"
#include "gather.h"
#include "sorted.h"

namespace sash {
namespace {

Chosen extremum(const char* op, Tensor (*position)(const Tensor&, int64_t, bool), const Tensor& x,
                int64_t axis, bool keepdim) {
  const int at = detail::checked_order_axis(op, x, axis);
  if (x.shape()[at] == 0) throw ShapeError(op, "an axis that is not empty", to_string(x.shape()));
  const Tensor indices = [&] {
    const NoGradGuard no_grad;
    const bool wide = x.device().is_cpu() && is_half(x.dtype());
    return position(wide ? x.to(DType::float32) : x, at, true);
  }();
  const Tensor values = gather(x, at, indices);
  if (keepdim) return {values, indices};
  return {values.squeeze(at), indices.squeeze(at)};
}

}  // namespace

Chosen sort(const Tensor& x, int64_t axis, bool descending) {
  const int at = detail::checked_order_axis("sort", x, axis);
  return detail::first_in_order("sort", x, x.shape()[at], at, descending);
}

Tensor argsort(const Tensor& x, int64_t axis, bool descending) {
  const int at = detail::checked_order_axis("argsort", x, axis);
  const NoGradGuard no_grad;
  return detail::first_in_order("argsort", x, x.shape()[at], at, descending).indices;
}

Chosen max(const Tensor& x, int64_t axis, bool keepdim) {
  return extremum("max", argmax, x, axis, keepdim);
}

Chosen min(const Tensor& x, int64_t axis, bool keepdim) {
  return extremum("min", argmin, x, axis, keepdim);
}

Tensor max(const Tensor& x) { return amax(x); }
Tensor min(const Tensor& x) { return amin(x); }

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
