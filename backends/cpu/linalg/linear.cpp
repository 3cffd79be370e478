#include "../../../ops/kernels/linalg.h"

#include "../../../core/backend/dispatch.h"
#include "gemm.h"
#include "operand.h"

namespace sash::cpu {
namespace {

void linear_forward(KernelContext& context, const TensorView& x, const TensorView& w,
                    const TensorView* bias, const TensorView& y) {
  dispatch_floating(y.dtype, "linear", [&]<class T>(TypeTag<T>) {
    const MatrixOperand<T> rows(context, x), weight(context, w);
    gemm<T>(context, {.m = y.shape[0],
                      .n = y.shape[1],
                      .k = x.shape[1],
                      .a = rows.matrix(),
                      .b = weight.matrix().transposed(),
                      .c = {y.ptr<T>(), y.shape[1], 1},
                      .bias = bias ? bias->ptr<const T>() : nullptr});
  });
}

}  // namespace

void register_linear() { kernels::linear_forward.set(DeviceType::cpu, linear_forward); }

}  // namespace sash::cpu
