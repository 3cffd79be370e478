#include "../../../ops/kernels/linalg.h"

#include "../../../core/error.h"
#include "../../../tensor/kernels/memory.h"
#include "operand.h"

namespace sash::cuda {
namespace {

/// `view` [rows, cols] as an operand of `gemm`.
Matrix matrix_of(const TensorView& view) {
  Matrix matrix = *as_matrix(view);
  matrix.alignment = alignment(view);
  return matrix;
}

/// Sets every row of y to the bias, or to 0 without one.
void spread(KernelContext& context, const TensorView* bias, const TensorView& y) {
  if (!bias) return kernels::fill(context, y, 0);
  TensorView rows = *bias;
  rows.shape = y.shape;
  rows.strides = {0, 1};
  kernels::copy(context, rows, y);
}

void linear_forward(KernelContext& context, const TensorView& x, const TensorView& w,
                    const TensorView* bias, const TensorView& y) {
  if (!is_floating(y.dtype)) throw DTypeError("linear", "a floating dtype", name(y.dtype));
  if (y.numel() == 0) return;
  if (x.shape[1] == 0) return spread(context, bias, y);
  const Operand rows(context, x), weight(context, w);
  Product product{.dtype = y.dtype,
                  .m = y.shape[0],
                  .n = y.shape[1],
                  .k = x.shape[1],
                  .a = matrix_of(rows.view()),
                  .b = matrix_of(weight.view()),
                  .c = matrix_of(y),
                  .bias = bias ? bias->data : nullptr};
  product.b.transposed = !product.b.transposed;
  if (bias && !offered(context, product)) {
    spread(context, bias, y);
    product.bias = nullptr;
    product.beta = 1;
  }
  gemm(context, product);
}

}  // namespace

void register_linear() { kernels::linear_forward.set(DeviceType::cuda, linear_forward); }

}  // namespace sash::cuda
