#include "where.h"

#include "../../tensor/tensor_impl.h"
#include "../kernels/elementwise.h"
#include "../op.h"
#include "../row_blocks.h"
#include "promotion.h"

namespace sash {

namespace kernels {
constinit decltype(where) where{"where"};
constinit decltype(masked_fill) masked_fill{"masked_fill"};
}  // namespace kernels

namespace {

/// The scalar as a 0-dimensional tensor.
Tensor held(Scalar value, DType dtype, Device device) {
  check_holds("where", dtype, value);
  return scalar_tensor(value, {.dtype = dtype, .device = device});
}

/// Checks the arguments of `masked_fill`.
void check_masked_fill(const char* op, const Tensor& x, const Tensor& mask, Scalar value) {
  check_defined_together(op, x, mask);
  check_dtype(op, mask, DType::boolean);
  if (broadcast_shapes(x.shape(), mask.shape(), op) != x.shape()) {
    throw ShapeError(op, "a mask that broadcasts to " + to_string(x.shape()),
                     to_string(mask.shape()));
  }
  check_holds(op, x.dtype(), value);
}

}  // namespace

Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b) {
  for (const Tensor* x : {&cond, &a, &b}) check_defined("where", *x);
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
  run_kernel(kernels::where, cond, a, b, y);
  return record("where", {a, b}, y,
                [cond = save(cond), a_shape = a.shape(), b_shape = b.shape()](Backward& pass,
                                                                              const Tensor& g) {
                  const Tensor chosen = pass(cond);
                  const Tensor zero = zeros({}, g.options());
                  return gradients_of(
                      pass, [&] { return sum_to(where(chosen, g, zero), a_shape); },
                      [&] { return sum_to(where(chosen, zero, g), b_shape); });
                });
}

Tensor where(const Tensor& cond, const Tensor& a, Scalar b) {
  check_defined("where", a);
  const DType dtype = result_type(a, b);
  return where(cond, a.to(dtype), held(b, dtype, a.device()));
}

Tensor where(const Tensor& cond, Scalar a, const Tensor& b) {
  check_defined("where", b);
  const DType dtype = result_type(b, a);
  return where(cond, held(a, dtype, b.device()), b.to(dtype));
}

Tensor where(const Tensor& cond, Scalar a, Scalar b) {
  check_defined("where", cond);
  const DType dtype = a.is_integer() && b.is_integer() ? DType::int64 : default_dtype();
  return where(cond, held(a, dtype, cond.device()), held(b, dtype, cond.device()));
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
  check_masked_fill("masked_fill", x, mask, value);
  const Tensor y = empty(x.shape(), x.options());
  run_kernel(kernels::masked_fill, x, mask, y, value);
  return record("masked_fill", {x}, y, [mask = save(mask)](Backward& pass, const Tensor& g) {
    return Gradients{masked_fill(g, pass(mask), 0)};
  });
}

Tensor& Tensor::masked_fill_(const Tensor& mask, Scalar value) {
  constexpr const char* op = "masked_fill_";
  check_masked_fill(op, *this, mask, value);
  check_write(op, *this);
  const Tensor chosen = clone_if_aliased(mask, *this);
  run_kernel(kernels::masked_fill, *this, chosen, *this, value);
  record_in_place(op, *this, {*this}, [chosen = save(chosen)](Backward& pass, const Tensor& g) {
    return Gradients{sash::masked_fill(g, pass(chosen), 0)};
  });
  return *this;
}

}  // namespace sash
