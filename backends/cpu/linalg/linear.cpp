#include "../../../ops/kernels/linalg.h"

#include "../../../core/backend/dispatch.h"
#include "../shape/halves.h"
#include "gemm.h"
#include "operand.h"

namespace sash::cpu {
namespace {

void linear_forward(KernelContext& context, const TensorView& x_, const TensorView& w_,
                    const TensorView* bias_, const TensorView& y_) {
  const FloatOperand in(context, x_), matrix(context, w_),
      row(context, bias_ ? *bias_ : TensorView());
  FloatResult out(context, y_);
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

}  // namespace

void register_linear() { kernels::linear_forward.set(DeviceType::cpu, linear_forward); }

}  // namespace sash::cpu
