#include "../../../ops/kernels/linalg.h"

#include <optional>

#include "../../../core/backend/dispatch.h"
#include "../shape/halves.h"
#include "gemm.h"
#include "operand.h"

namespace sash::cpu {
namespace {

Dims leading(const Dims& dims) { return Dims(std::span(dims.begin(), dims.end() - 2)); }

template <class T>
void product(KernelContext& context, const TensorView& a, const TensorView& b, const TensorView& c,
             double alpha, double beta) {
  const MatrixOperand<T> left(context, a), right(context, b);
  const int row = c.rank() - 2, col = c.rank() - 1;
  const Matrix<T> out{c.ptr<T>(), c.strides[row], c.strides[col]};
  gemm<T>(
      context,
      {.m = c.shape[row],
       .n = c.shape[col],
       .k = a.shape[col],
       .a = left.matrix(),
       .b = right.matrix(),
       .c = out,
       .alpha = static_cast<T>(alpha),
       .beta = static_cast<T>(beta)},
      {leading(c.shape), leading(left.strides()), leading(right.strides()), leading(c.strides)});
}

void matmul(KernelContext& context, const TensorView& a, const TensorView& b, const TensorView& c,
            double alpha, double beta) {
  const FloatOperand left(context, a), right(context, b);
  FloatResult out(context, c);
  if (is_half(c.dtype) && beta != 0) kernels::copy(context, c, out.view());
  dispatch_floating(out.view().dtype, "matmul", [&]<class T>(TypeTag<T>) {
    product<T>(context, left.view(), right.view(), out.view(), alpha, beta);
  });
  out.write();
}

}  // namespace

void register_matmul() { kernels::matmul.set(DeviceType::cpu, matmul); }

}  // namespace sash::cpu
