#include "../../../ops/kernels/elementwise.h"
#include "../../../ops/kernels/linalg.h"
#include "../../../tensor/kernels/gradients.h"

/// Linear layers with their edges, from the kernels of their parts: both are bound by arithmetic.
namespace sash::cpu {
namespace {

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

void register_linear_gelu() {
  kernels::linear_gelu_forward.set(DeviceType::cpu, linear_gelu_forward);
  kernels::linear_gelu_gradient.set(DeviceType::cpu, linear_gelu_gradient);
}

}  // namespace sash::cpu
