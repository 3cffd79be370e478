#include "compare.h"

#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../kernels/elementwise.h"
#include "promotion.h"

namespace sash {

namespace kernels {
constinit CompareKernel eq{"eq"};
constinit CompareKernel ne{"ne"};
constinit CompareKernel lt{"lt"};
constinit CompareKernel le{"le"};
constinit CompareKernel gt{"gt"};
constinit CompareKernel ge{"ge"};
constinit CompareScalarKernel eq_scalar{"eq_scalar"};
constinit CompareScalarKernel ne_scalar{"ne_scalar"};
constinit CompareScalarKernel lt_scalar{"lt_scalar"};
constinit CompareScalarKernel le_scalar{"le_scalar"};
constinit CompareScalarKernel gt_scalar{"gt_scalar"};
constinit CompareScalarKernel ge_scalar{"ge_scalar"};
constinit CompareKernel logical_and{"logical_and"};
constinit CompareKernel logical_or{"logical_or"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&)> logical_not{
    "logical_not"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&)> isnan{"isnan"};
}  // namespace kernels

namespace {

Tensor empty_bool(const Shape& shape, Device device) {
  return empty(shape, {.dtype = DType::boolean, .device = device});
}

Tensor compare(const char* op, const kernels::CompareKernel& kernel, const Tensor& a,
               const Tensor& b) {
  check_defined(op, a);
  check_defined(op, b);
  check_same_device(op, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), op);
  if (a.dtype() != b.dtype()) {
    const NoGradGuard no_grad;
    const DType dtype = result_type(a, b);
    return compare(op, kernel, a.to(dtype), b.to(dtype));
  }
  Tensor y = empty_bool(shape, a.device());
  KernelContext context = kernel_context(a.device());
  kernel(context, a.tensor_view(), b.tensor_view(), y.tensor_view());
  return y;
}

Tensor compare(const char* op, const kernels::CompareScalarKernel& kernel, const Tensor& x,
               Scalar value) {
  check_defined(op, x);
  if (is_integral(x.dtype()) && !value.is_integer()) {
    const NoGradGuard no_grad;
    return compare(op, kernel, x.to(result_type(x, value)), value);
  }
  Tensor y = empty_bool(x.shape(), x.device());
  KernelContext context = kernel_context(x.device());
  kernel(context, x.tensor_view(), y.tensor_view(), value);
  return y;
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", kernels::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", kernels::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", kernels::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", kernels::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", kernels::gt, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare("ge", kernels::ge, a, b); }

Tensor eq(const Tensor& x, Scalar value) { return compare("eq", kernels::eq_scalar, x, value); }
Tensor ne(const Tensor& x, Scalar value) { return compare("ne", kernels::ne_scalar, x, value); }
Tensor lt(const Tensor& x, Scalar value) { return compare("lt", kernels::lt_scalar, x, value); }
Tensor le(const Tensor& x, Scalar value) { return compare("le", kernels::le_scalar, x, value); }
Tensor gt(const Tensor& x, Scalar value) { return compare("gt", kernels::gt_scalar, x, value); }
Tensor ge(const Tensor& x, Scalar value) { return compare("ge", kernels::ge_scalar, x, value); }

Tensor logical_and(const Tensor& a, const Tensor& b) {
  check_compatible("logical_and", a, b);
  check_dtype("logical_and", a, DType::boolean);
  return compare("logical_and", kernels::logical_and, a, b);
}

Tensor logical_or(const Tensor& a, const Tensor& b) {
  check_compatible("logical_or", a, b);
  check_dtype("logical_or", a, DType::boolean);
  return compare("logical_or", kernels::logical_or, a, b);
}

Tensor logical_not(const Tensor& x) {
  check_defined("logical_not", x);
  check_dtype("logical_not", x, DType::boolean);
  Tensor y = empty_bool(x.shape(), x.device());
  KernelContext context = kernel_context(x.device());
  kernels::logical_not(context, x.tensor_view(), y.tensor_view());
  return y;
}

Tensor isnan(const Tensor& x) {
  check_defined("isnan", x);
  check_floating("isnan", x);
  Tensor y = empty_bool(x.shape(), x.device());
  KernelContext context = kernel_context(x.device());
  kernels::isnan(context, x.tensor_view(), y.tensor_view());
  return y;
}

}  // namespace sash
