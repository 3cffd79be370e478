#include "../../../ops/kernels/linalg.h"

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/elementwise.h"
#include "../../../tensor/kernels/gradients.h"
#include "../shape/halves.h"
#include "bfloat16_product.h"
#include "few_rows.h"
#include "gemm.h"
#include "operand.h"

namespace sash::cpu {
namespace {

#if SASH_MICRO_KERNEL

// Few rows with a matrix of halves, which are not converted in memory.
template <class Half>
void multiply_few_rows(const Product<float>& product, const Half* weight) {
  constexpr int64_t kColumns = 64;
  parallel_for(product.n, kColumns, [&](int64_t begin, int64_t end) {
    Product<float> part = product;
    part.n = end - begin;
    part.c.data = product.c.at(0, begin);
    if (product.bias) part.bias = product.bias + begin;
    FewRows<float, Half>::run(part, weight + begin * product.b.col_stride);
  });
}

// Whether it did the product, of x [m, k] in float32.
bool multiply_halves(View x, View w, View bias, View y) {
  const bool rows = w.strides[1] == 1 || w.shape[1] == 1;
  if (!is_half(w.dtype) || !rows || y.numel() == 0) return false;
  const int64_t k = x.shape[1];
  const Product<float> product{.m = y.shape[0],
                               .n = y.shape[1],
                               .k = k,
                               .a = {x.ptr<const float>(), x.strides[0], x.strides[1]},
                               .b = {nullptr, 1, w.strides[0]},
                               .c = {y.ptr<float>(), y.shape[1], 1},
                               .bias = bias.data ? bias.ptr<const float>() : nullptr};
  if (!FewRows<float>::fits(product)) return false;
  if (w.dtype == DType::float16) {
    multiply_few_rows(product, w.ptr<const float16>());
  } else {
    multiply_few_rows(product, w.ptr<const bfloat16>());
  }
  return true;
}

#else

bool multiply_halves(View, View, View, View) { return false; }

#endif

void linear_forward(KernelContext& context, View x_, View w_, const TensorView* bias_, View y_) {
  TensorView weight_columns = w_;
  std::swap(weight_columns.shape[0], weight_columns.shape[1]);
  std::swap(weight_columns.strides[0], weight_columns.strides[1]);
  const TensorView none;
  if (multiply_bfloat16(context, x_, weight_columns, bias_ ? *bias_ : none, y_, 1, 0)) return;
  const FloatOperand in(context, x_), row(context, bias_ ? *bias_ : TensorView());
  FloatResult out(context, y_);
  if (multiply_halves(in.view(), w_, row.view(), out.view())) return out.write();
  const FloatOperand matrix(context, w_);
  const TensorView &x = in.view(), &w = matrix.view(), &y = out.view();
  dispatch_floating(y.dtype, "linear", [&]<class T>(TypeTag<T>) {
    const MatrixOperand<T> rows(context, x), weight(context, w);
    gemm<T>(context, {.m = y.shape[0],
                      .n = y.shape[1],
                      .k = x.shape[1],
                      .a = rows.matrix(),
                      .b = weight.matrix().transposed(),
                      .c = {y.ptr<T>(), y.shape[1], 1},
                      .bias = bias_ ? row.view().ptr<const T>() : nullptr});
  });
  out.write();
}

/// Linear layers with their edges, from the kernels of their parts: both are bound by arithmetic.
void linear_gelu_forward(KernelContext& context, View x, View w, const TensorView* bias, View z,
                         View y, bool tanh) {
  const TensorView& argument = z.data ? z : y;
  kernels::linear_forward(context, x, w, bias, argument);
  kernels::gelu_forward(context, argument, y, tanh);
}

void linear_gelu_gradient(KernelContext& context, View g, View w, View z, View dz, View dbias,
                          bool tanh) {
  kernels::matmul(context, g, w, dz, 1, 0);
  kernels::gelu_backward(context, z, dz, dz, tanh);
  if (!dbias.data) return;
  TensorView row = dbias;
  row.shape = {1, dbias.shape[0]};
  row.strides = {dbias.shape[0], 1};
  kernels::sum(context, dz, row);
}

}  // namespace

void register_linear() { kernels::linear_forward.set(DeviceType::cpu, linear_forward); }

void register_linear_gelu() {
  kernels::linear_gelu_forward.set(DeviceType::cpu, linear_gelu_forward);
  kernels::linear_gelu_gradient.set(DeviceType::cpu, linear_gelu_gradient);
}

}  // namespace sash::cpu
