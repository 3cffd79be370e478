#include "../../../ops/kernels/linalg.h"

#include <algorithm>
#include <optional>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/halves.h"
#include "bfloat16_product.h"
#include "gemm.h"
#include "operand.h"

namespace sash::cpu {
namespace {

template <class T>
void product(KernelContext& context, View a, View b, View c, double alpha, double beta) {
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

// Row by row, since integers need no order of sums.
void integer_product(View a, View b, View c) {
  const int col = c.rank() - 1, row = col - 1;
  const int64_t n = c.shape[col], k = a.shape[col];
  const int64_t a_step = a.strides[col], b_step = b.strides[col], c_step = c.strides[col];
  if (c.numel() == 0) return;
  const int64_t grain = std::max<int64_t>(1, 32768 / (n * (k + 1)));
  parallel_for_each(c.numel() / n, grain, [&](int64_t line) {
    const uint64_t *x = a.ptr<const uint64_t>(), *y = b.ptr<const uint64_t>();
    uint64_t* z = c.ptr<uint64_t>();
    int64_t rest = line;
    for (int axis = row; axis >= 0; rest /= c.shape[axis--]) {
      const int64_t at = rest % c.shape[axis];
      x += at * a.strides[axis];
      z += at * c.strides[axis];
      if (axis < row) y += at * b.strides[axis];
    }
    for (int64_t j = 0; j < n; ++j) z[j * c_step] = 0;
    for (int64_t i = 0; i < k; ++i) {
      const uint64_t factor = x[i * a_step];
      const uint64_t* const from = y + i * b.strides[row];
      for (int64_t j = 0; j < n; ++j) z[j * c_step] += factor * from[j * b_step];
    }
  });
}

void matmul(KernelContext& context, View a, View b, View c, double alpha, double beta) {
  if (c.dtype == DType::int64) return integer_product(a, b, c);
  if (multiply_bfloat16(context, a, b, {}, c, alpha, beta)) return;
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
