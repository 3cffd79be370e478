#include "matmul_in_place.h"

#include <optional>

#include "../../tensor/tensor_impl.h"
#include "../elementwise/promotion.h"
#include "../kernels/linalg.h"
#include "../op.h"
#include "../row_blocks.h"
#include "matmul.h"

namespace sash {
namespace {

constexpr const char* kMatmulInPlace = "matmul_";

/// Elements of a block: on the CPU more than for other ops, as a product of few rows spends its
/// time on packing w.
int64_t product_elements(Device device) {
  return device.is_cpu() ? int64_t{1} << 21 : block_elements(device);
}

void check_arguments(const Tensor& a, const Tensor& w) {
  check_defined_together(kMatmulInPlace, a, w);
  check_floating(kMatmulInPlace, a);
  check_floating(kMatmulInPlace, w);
  const bool fits =
      a.rank() > 0 && w.rank() == 2 && w.size(0) == w.size(1) && a.size(-1) == w.size(0);
  if (!fits) {
    throw ShapeError(kMatmulInPlace, "a [..., K] and a square w [K, K]", shapes_of(a, w));
  }
  check_write(kMatmulInPlace, a, {w});
}

/// Replaces the rows of a matrix by their products with w, whose dtype they are computed in.
class RowProduct {
 public:
  RowProduct(KernelContext& context, const TensorView& w) : context_(context), w_(w) {}

  void operator()(const TensorView& matrix) const {
    const int64_t rows = matrix.shape[0], n = matrix.shape[1];
    const int64_t height = std::clamp<int64_t>(product_elements(w_.device) / n, 1, rows);
    const int64_t bytes = height * n * size_of(w_.dtype);
    // The product is written to the rows themselves if the kernels can.
    const bool direct =
        matrix.dtype == w_.dtype && (matrix.strides[0] == 1 || matrix.strides[1] == 1);
    const Workspace old(context_, bytes);
    std::optional<Workspace> result;
    if (!direct) result.emplace(context_, bytes);
    for (int64_t row = 0; row < rows; row += height) {
      const TensorView part = narrow_first(matrix, row, std::min(height, rows - row));
      const TensorView from = like(part, old.ptr<void>(), w_.dtype);
      kernels::copy(context_, part, from);
      const TensorView to = direct ? part : like(part, result->ptr<void>(), w_.dtype);
      kernels::matmul(context_, from, w_, to, 1, 0);
      if (!direct) kernels::copy(context_, to, part);
    }
  }

 private:
  KernelContext& context_;
  const TensorView& w_;
};

}  // namespace

Tensor matmul_(Tensor a, const Tensor& w) {
  check_arguments(a, w);
  const DType dtype = row_dtype(a.device(), promote_types(a.dtype(), w.dtype()));
  const bool recorded = grad_enabled() && w.requires_grad();
  const Saved old = recorded ? save(a.clone()) : Saved();
  const Tensor operand = clone_if_aliased(w, a);
  {
    const NoGradGuard no_grad;
    const Tensor factor = operand.to(dtype);
    KernelContext context = kernel_context(a.device());
    const TensorView view = factor.tensor_view();
    for_each_matrix(a.tensor_view(), RowProduct(context, view));
  }
  record_in_place(kMatmulInPlace, a, {a, operand},
                  [old, dtype, w = save_if(a.requires_grad(), operand), w_dtype = w.dtype()](
                      Backward& pass, const Tensor& g) {
                    const Tensor wide = g.to(dtype);
                    return gradients_of(
                        pass, [&] { return matmul(wide, pass(w).to(dtype).mT()).to(g.dtype()); },
                        [&] {
                          const Tensor rows = detail::flatten_rows(pass(old).to(dtype));
                          return matmul(rows.mT(), detail::flatten_rows(wide)).to(w_dtype);
                        });
                  });
  return a;
}

}  // namespace sash
