#include "../../../ops/kernels/linalg.h"

#include "../../../core/error.h"
#include "../../../ops/kernels/elementwise.h"
#include "../../../tensor/kernels/memory.h"
#include "few_rows.h"
#include "gelu_sums.h"
#include "operand.h"

namespace sash::cuda {
namespace {

/// `view` [rows, cols] as an operand of `gemm`.
Matrix matrix_of(View view) {
  Matrix matrix = *as_matrix(view);
  matrix.alignment = alignment(view);
  return matrix;
}

/// Sets every row of y to the bias, or to 0 without one.
void spread(KernelContext& context, const TensorView* bias, View y) {
  if (!bias) return kernels::fill(context, y, 0);
  TensorView rows = *bias;
  rows.shape = y.shape;
  rows.strides = {0, 1};
  kernels::copy(context, rows, y);
}

/// y = x w' + bias. x and w are operands of `gemm`, and have elements.
Product linear_product(View x, View w, const TensorView* bias, View y) {
  Product product{.dtype = y.dtype,
                  .m = y.shape[0],
                  .n = y.shape[1],
                  .k = x.shape[1],
                  .a = matrix_of(x),
                  .b = matrix_of(w),
                  .c = matrix_of(y),
                  .bias = bias ? bias->data : nullptr};
  product.b.transposed = !product.b.transposed;
  return product;
}

void check_dtype(View y) {
  if (!is_floating(y.dtype)) throw DTypeError("linear", "a floating dtype", name(y.dtype));
}

void linear_forward(KernelContext& context, View x, View w, const TensorView* bias, View y) {
  check_dtype(y);
  if (y.numel() == 0) return;
  if (x.shape[1] == 0) return spread(context, bias, y);
  if (few_rows_product(context, x, w, {.bias = bias}, y)) return;
  const Operand rows(context, x), weight(context, w);
  Product product = linear_product(rows.view(), weight.view(), bias, y);
  if (bias && !offered(context, product)) {
    spread(context, bias, y);
    product.bias = nullptr;
    product.beta = 1;
  }
  gemm(context, product);
}

/// cuBLASLt's GELU is that by tanh.
bool in_epilogue(View y, bool tanh) { return tanh && size_of(y.dtype) == 2; }

void linear_gelu_forward(KernelContext& context, View x, View w, const TensorView* bias, View z,
                         View y, bool tanh) {
  check_dtype(y);
  if (y.numel() == 0) return;
  if (in_epilogue(y, tanh) && x.shape[1] > 0) {
    const Operand rows(context, x), weight(context, w);
    Product product = linear_product(rows.view(), weight.view(), bias, y);
    product.gelu = true;
    product.gelu_input = z.data;
    if (offered(context, product)) return gemm(context, product);
  }
  const TensorView& argument = z.data ? z : y;
  linear_forward(context, x, w, bias, argument);
  kernels::gelu_forward(context, argument, y, tanh);
}

// cuBLASLt's epilogues for GELU's derivative and for sums cost more than this pass (H200,
// cuBLAS 13.1).
void linear_gelu_gradient(KernelContext& context, View g, View w, View z, View dz, View dbias,
                          bool tanh) {
  check_dtype(dz);
  kernels::matmul(context, g, w, dz, 1, 0);
  if (dbias.data) {
    gelu_gradient_and_sums(context, z, dz, dbias, tanh);
  } else {
    kernels::gelu_backward(context, z, dz, dz, tanh);
  }
}

}  // namespace

void register_linear() {
  kernels::linear_forward.set(DeviceType::cuda, linear_forward);
  kernels::linear_gelu_forward.set(DeviceType::cuda, linear_gelu_forward);
  kernels::linear_gelu_gradient.set(DeviceType::cuda, linear_gelu_gradient);
}

}  // namespace sash::cuda
