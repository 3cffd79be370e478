#include "topk.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../kernels/index.h"
#include "gather.h"
#include "sorted.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&, int,
                      bool)>
    topk{"topk"};
}  // namespace kernels

int detail::checked_order_axis(const char* op, const Tensor& x, int64_t axis) {
  check_defined(op, x);
  check_not_bool(op, x);
  check_min_rank(op, x, 1);
  return normalize_axis(axis, x.rank(), op);
}

Chosen detail::first_in_order(const char* op, const Tensor& x, int64_t count, int axis,
                              bool descending) {
  if (x.dtype() == DType::uint8) {
    const Chosen wide = first_in_order(op, x.to(DType::int32), count, axis, descending);
    return {wide.values.to(DType::uint8), wide.indices};
  }
  Shape shape = x.shape();
  shape[axis] = count;
  const Tensor values = empty(shape, x.options());
  const Tensor indices = empty(shape, {.dtype = DType::int64, .device = x.device()});
  KernelContext context = kernel_context(x.device());
  kernels::topk(context, x.tensor_view(), values.tensor_view(), indices.tensor_view(), axis,
                descending);
  record(op, {x}, values,
         [from = x.shape(), axis, indices = save(indices)](Backward& pass, const Tensor& g) {
           return Gradients{scatter_add(zeros(from, g.options()), axis, pass(indices), g)};
         });
  return {values, indices};
}

Chosen topk(const Tensor& x, int64_t k, int64_t axis, bool largest) {
  const int at = detail::checked_order_axis("topk", x, axis);
  if (k < 0 || k > x.shape()[at]) {
    throw ValueError("topk", "k in [0, " + std::to_string(x.shape()[at]) + "]", std::to_string(k));
  }
  return detail::first_in_order("topk", x, k, at, largest);
}

Chosen Tensor::topk(int64_t k, int64_t axis, bool largest) const {
  return sash::topk(*this, k, axis, largest);
}

}  // namespace sash
