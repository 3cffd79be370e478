#include "../../../ops/kernels/linalg.h"

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/convert.h"
#include "../shape/halves.h"
#include "few_rows.h"
#include "gemm.h"
#include "operand.h"

namespace sash::cpu {
namespace {

#if SASH_MICRO_KERNEL

// Few rows with a matrix of halves, at the rate at which that is read: some of its rows at a time
// become float32, in memory that stays in the cache.
template <class Half>
void multiply_few_rows(const KernelContext& context, const Product<float>& product,
                       const TensorView& w) {
  constexpr int64_t kWeights = 4;
  const int64_t k = product.k, bytes = kWeights * k * static_cast<int64_t>(sizeof(float));
  parallel_for(product.n, 16 * kWeights, [&](int64_t begin, int64_t end) {
    const Workspace memory(context, bytes);
    float* const rows = memory.ptr<float>();
    for (int64_t j = begin; j < end; j += kWeights) {
      Product<float> part = product;
      part.n = std::min(kWeights, end - j);
      for (int64_t i = 0; i < part.n; ++i) {
        widen(w.ptr<const Half>() + (j + i) * w.strides[0], k, rows + i * k);
      }
      part.b = {rows, 1, k};
      part.c.data = product.c.at(0, j);
      if (product.bias) part.bias = product.bias + j;
      FewRows<float>::run(part);
    }
  });
}

// Whether it did the product, of x [m, k] in float32.
bool multiply_halves(const KernelContext& context, const TensorView& x, const TensorView& w,
                     const TensorView& bias, const TensorView& y) {
  const bool rows = w.strides[1] == 1 || w.shape[1] == 1;
  if (!is_half(w.dtype) || !rows || y.numel() == 0) return false;
  const int64_t k = x.shape[1];
  const Product<float> product{.m = y.shape[0],
                               .n = y.shape[1],
                               .k = k,
                               .a = {x.ptr<const float>(), x.strides[0], x.strides[1]},
                               .b = {nullptr, 1, k},
                               .c = {y.ptr<float>(), y.shape[1], 1},
                               .bias = bias.data ? bias.ptr<const float>() : nullptr};
  if (!FewRows<float>::fits(product)) return false;
  if (w.dtype == DType::float16) {
    multiply_few_rows<float16>(context, product, w);
  } else {
    multiply_few_rows<bfloat16>(context, product, w);
  }
  return true;
}

#else

bool multiply_halves(const KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                     const TensorView&) {
  return false;
}

#endif

void linear_forward(KernelContext& context, const TensorView& x_, const TensorView& w_,
                    const TensorView* bias_, const TensorView& y_) {
  const FloatOperand in(context, x_), row(context, bias_ ? *bias_ : TensorView());
  FloatResult out(context, y_);
  if (multiply_halves(context, in.view(), w_, row.view(), out.view())) return out.write();
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

}  // namespace

void register_linear() { kernels::linear_forward.set(DeviceType::cpu, linear_forward); }

}  // namespace sash::cpu
