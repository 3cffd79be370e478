#include "../../../ops/kernels/elementwise.h"
#include "../../../ops/kernels/linalg.h"
#include "../../../tensor/kernels/gradients.h"

/// Linear layers with their edges, from the kernels of their parts: both are bound by arithmetic.
namespace sash::cpu {
namespace {

void linear_gelu_forward(KernelContext& context, const TensorView& x, const TensorView& w,
                         const TensorView* bias, const TensorView& z, const TensorView& y,
                         bool tanh) {
  const TensorView& argument = z.data ? z : y;
  kernels::linear_forward(context, x, w, bias, argument);
  kernels::gelu_forward(context, argument, y, tanh);
}

void sum_rows(KernelContext& context, const TensorView& x, const TensorView& sums) {
  if (!sums.data) return;
  TensorView row = sums;
  row.shape = {1, sums.shape[0]};
  row.strides = {sums.shape[0], 1};
  kernels::sum(context, x, row);
}

void linear_gelu_gradient(KernelContext& context, const TensorView& g, const TensorView& w,
                          const TensorView& z, const TensorView& dz, const TensorView& dbias,
                          bool tanh) {
  kernels::matmul(context, g, w, dz, 1, 0);
  kernels::gelu_backward(context, z, dz, dz, tanh);
  sum_rows(context, dz, dbias);
}

void linear_parameter_gradients(KernelContext& context, const TensorView& g, const TensorView& x,
                                const TensorView& dw, const TensorView& dbias) {
  TensorView columns = g;
  columns.shape = {g.shape[1], g.shape[0]};
  columns.strides = {g.strides[1], g.strides[0]};
  kernels::matmul(context, columns, x, dw, 1, 0);
  sum_rows(context, g, dbias);
}

}  // namespace

void register_linear_gelu() {
  kernels::linear_gelu_forward.set(DeviceType::cpu, linear_gelu_forward);
  kernels::linear_gelu_gradient.set(DeviceType::cpu, linear_gelu_gradient);
  kernels::linear_parameter_gradients.set(DeviceType::cpu, linear_parameter_gradients);
}

}  // namespace sash::cpu
