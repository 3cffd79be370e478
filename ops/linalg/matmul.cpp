#include "matmul.h"

#include "../kernels/linalg.h"
#include "../op.h"
#include "batch.h"

namespace sash {

constinit decltype(kernels::matmul) kernels::matmul{"matmul"};

namespace {

using detail::batch_of;
using detail::broadcast_batch;
using detail::with_matrix;

// The gradient of b in c = a b.
Tensor right_gradient(const Tensor& a, const Tensor& g, const Shape& shape) {
  if (shape.rank() == 2 && a.rank() > 2)
    return matmul(detail::flatten_rows(a).mT(), detail::flatten_rows(g));
  return sum_to(matmul(a.mT(), g), shape);
}

// Both operands have at least two axes.
Tensor batched(const Tensor& a, const Tensor& b) {
  const Shape batch = broadcast_shapes(batch_of(a), batch_of(b), "matmul");
  const Tensor c = empty(with_matrix(batch, a.size(-2), b.size(-1)), a.options());
  const Tensor right = is_floating(b.dtype()) ? b : b.contiguous();  // rows of integers are read
  run_kernel(kernels::matmul, broadcast_batch(a, batch), broadcast_batch(right, batch), c, 1, 0);
  return record("matmul", {a, b}, c,
                [a = save_if(b.requires_grad(), a), b = save_if(a.requires_grad(), b),
                 shape_a = a.shape(), shape_b = b.shape()](Backward& pass, const Tensor& g) {
                  return gradients_of(
                      pass, [&] { return sum_to(matmul(g, pass(b).mT()), shape_a); },
                      [&] { return right_gradient(pass(a), g, shape_b); });
                });
}

}  // namespace

Tensor detail::flatten_rows(const Tensor& x) {
  int64_t rows = 1;
  for (int axis = 0; axis < x.rank() - 1; ++axis) rows *= x.shape()[axis];
  return x.reshape({rows, x.shape().back()});
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (Autocast cast("matmul"); cast) return matmul(cast(a), cast(b));
  check_compatible("matmul", a, b);
  check_not_bool("matmul", a);
  check_min_rank("matmul", a, 1);
  check_min_rank("matmul", b, 1);
  if (a.size(-1) != b.size(b.rank() == 1 ? 0 : -2)) {
    throw ShapeError("matmul", "a [..., M, K] and b [..., K, N] with one K", shapes_of(a, b));
  }
  if (is_integral(a.dtype()) && a.dtype() != DType::int64) {
    return matmul(a.to(DType::int64), b.to(DType::int64)).to(a.dtype());
  }
  if (a.rank() == 1) {
    const Tensor c = matmul(a.unsqueeze(0), b);
    return b.rank() == 1 ? c.squeeze(0) : c.squeeze(-2);
  }
  if (b.rank() == 1) return matmul(a, b.unsqueeze(1)).squeeze(-1);
  if (a.rank() > 2 && b.rank() == 2 && a.is_contiguous()) {
    return batched(detail::flatten_rows(a), b)
        .view(with_matrix(batch_of(a), a.size(-2), b.size(-1)));
  }
  return batched(a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  if (Autocast cast("bmm"); cast) return bmm(cast(a), cast(b));
  check_compatible("bmm", a, b);
  check_not_bool("bmm", a);
  if (a.rank() != 3 || b.rank() != 3 || a.size(0) != b.size(0) || a.size(2) != b.size(1)) {
    throw ShapeError("bmm", "a [B, M, K] and b [B, K, N]", shapes_of(a, b));
  }
  return matmul(a, b);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_defined_together("outer", a, b);
  check_rank("outer", a, 1);
  check_rank("outer", b, 1);
  return a.unsqueeze(1) * b;
}

Tensor Tensor::matmul(const Tensor& other) const { return sash::matmul(*this, other); }

}  // namespace sash
