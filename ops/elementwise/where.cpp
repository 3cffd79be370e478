#include "where.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../kernels/elementwise.h"
#include "../reduce/reduce.h"
#include "promotion.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&)>
    where{"where"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const Scalar&)>
    masked_fill{"masked_fill"};
}  // namespace kernels

Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b) {
  check_defined("where", cond);
  check_defined("where", a);
  check_defined("where", b);
  check_dtype("where", cond, DType::boolean);
  check_same_device("where", a, b);
  check_same_device("where", cond, a);
  const Shape shape =
      broadcast_shapes(cond.shape(), broadcast_shapes(a.shape(), b.shape(), "where"), "where");
  if (a.dtype() != b.dtype()) {
    const DType dtype = result_type(a, b);
    return where(cond, a.to(dtype), b.to(dtype));
  }
  Tensor y = empty(shape, a.options());
  KernelContext context = kernel_context(a.device());
  kernels::where(context, cond.tensor_view(), a.tensor_view(), b.tensor_view(), y.tensor_view());
  return record("where", {a, b}, y,
                [cond = save(cond), a_shape = a.shape(), b_shape = b.shape()](Backward& pass,
                                                                              const Tensor& g) {
                  const Tensor chosen = pass(cond);
                  const Tensor zero = zeros({}, g.options());
                  Gradients grads(2);
                  if (pass.needs(0)) grads[0] = sum_to(where(chosen, g, zero), a_shape);
                  if (pass.needs(1)) grads[1] = sum_to(where(chosen, zero, g), b_shape);
                  return grads;
                });
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
  check_defined("masked_fill", x);
  check_defined("masked_fill", mask);
  check_dtype("masked_fill", mask, DType::boolean);
  check_same_device("masked_fill", x, mask);
  if (broadcast_shapes(x.shape(), mask.shape(), "masked_fill") != x.shape()) {
    throw ShapeError("masked_fill", "a mask that broadcasts to " + to_string(x.shape()),
                     to_string(mask.shape()));
  }
  check_holds("masked_fill", x.dtype(), value);
  Tensor y = empty(x.shape(), x.options());
  KernelContext context = kernel_context(x.device());
  kernels::masked_fill(context, x.tensor_view(), mask.tensor_view(), y.tensor_view(), value);
  return record("masked_fill", {x}, y, [mask = save(mask)](Backward& pass, const Tensor& g) {
    return Gradients{masked_fill(g, pass(mask), 0)};
  });
}

}  // namespace sash
