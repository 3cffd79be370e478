#include "block_sparse_matmul.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../autocast.h"
#include "../checks.h"
#include "../kernels/sparse.h"
#include "../linalg/matmul.h"
#include "../reduce/reduce.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView*,
                      const BlockPatternView&, bool, const TensorView&)>
    block_sparse_matmul{"block_sparse_matmul"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const BlockPatternView&,
                      const TensorView&)>
    sampled_matmul{"sampled_matmul"};
}  // namespace kernels

namespace {

// Rows of a and b are contiguous matrices below.

Tensor sampled(const Tensor& a, const Tensor& b, const BlockPattern& pattern);

// a W' + bias, or a W.
Tensor product(const Tensor& a, const Tensor& data, const Tensor& bias, const BlockPattern& pattern,
               bool transposed) {
  const Tensor rows = a.contiguous(), blocks = data.contiguous();
  const Tensor y =
      empty({rows.size(0), transposed ? pattern.rows() : pattern.columns()}, rows.options());
  KernelContext context = kernel_context(rows.device());
  TensorView bias_view;
  Tensor bias_row;
  if (bias.defined()) {
    bias_row = bias.contiguous();
    bias_view = bias_row.tensor_view();
  }
  kernels::block_sparse_matmul(context, rows.tensor_view(), blocks.tensor_view(),
                               bias.defined() ? &bias_view : nullptr, pattern.view(rows.device()),
                               transposed, y.tensor_view());
  return record(transposed ? "block_sparse_linear" : "block_sparse_matmul", {rows, blocks, bias}, y,
                [a = save_if(data.requires_grad(), rows), data = save_if(a.requires_grad(), blocks),
                 pattern, transposed](Backward& pass, const Tensor& g) {
                  Gradients gradients(3);
                  if (pass.needs(0))
                    gradients[0] = product(g, pass(data), {}, pattern, !transposed);
                  if (pass.needs(1)) {
                    gradients[1] =
                        transposed ? sampled(g, pass(a), pattern) : sampled(pass(a), g, pattern);
                  }
                  if (pass.needs(2)) gradients[2] = sum(g, {0});
                  return gradients;
                });
}

Tensor sampled(const Tensor& a, const Tensor& b, const BlockPattern& pattern) {
  const Tensor left = a.contiguous(), right = b.contiguous();
  const Tensor data = empty({pattern.blocks(), pattern.block(), pattern.block()}, left.options());
  KernelContext context = kernel_context(left.device());
  kernels::sampled_matmul(context, left.tensor_view(), right.tensor_view(),
                          pattern.view(left.device()), data.tensor_view());
  return record("sampled_matmul", {left, right}, data,
                [a = save_if(b.requires_grad(), left), b = save_if(a.requires_grad(), right),
                 pattern](Backward& pass, const Tensor& g) {
                  Gradients gradients(2);
                  if (pass.needs(0)) gradients[0] = product(pass(b), g, {}, pattern, true);
                  if (pass.needs(1)) gradients[1] = product(pass(a), g, {}, pattern, false);
                  return gradients;
                });
}

void check_last(const char* op, const char* what, const Tensor& x, int64_t extent) {
  check_min_rank(op, x, 1);
  if (x.size(-1) == extent) return;
  throw ShapeError(op, std::string(what) + " [..., " + std::to_string(extent) + "]",
                   to_string(x.shape()));
}

Tensor with_last(const Tensor& rows, Shape shape, int64_t extent) {
  shape[shape.rank() - 1] = extent;
  return rows.view(shape);
}

}  // namespace

Tensor block_sparse_linear(const Tensor& x, const BlockSparseMatrix& weight, const Tensor& bias) {
  constexpr const char* op = "block_sparse_linear";
  if (Autocast cast(op); cast) {
    return block_sparse_linear(cast(x), {weight.pattern(), cast(weight.data())}, cast(bias));
  }
  check_compatible(op, x, weight.data());
  check_last(op, "x", x, weight.columns());
  if (bias.defined()) {
    check_compatible(op, x, bias);
    check_shape(op, bias, {weight.rows()});
  }
  return with_last(product(detail::flatten_rows(x), weight.data(), bias, weight.pattern(), true),
                   x.shape(), weight.rows());
}

Tensor block_sparse_matmul(const Tensor& a, const BlockSparseMatrix& w) {
  constexpr const char* op = "block_sparse_matmul";
  if (Autocast cast(op); cast) {
    return block_sparse_matmul(cast(a), {w.pattern(), cast(w.data())});
  }
  check_compatible(op, a, w.data());
  check_last(op, "a", a, w.rows());
  return with_last(product(detail::flatten_rows(a), w.data(), {}, w.pattern(), false), a.shape(),
                   w.columns());
}

BlockSparseMatrix sampled_matmul(const Tensor& a, const Tensor& b, const BlockPattern& pattern) {
  constexpr const char* op = "sampled_matmul";
  if (Autocast cast(op); cast) return sampled_matmul(cast(a), cast(b), pattern);
  check_compatible(op, a, b);
  check_floating(op, a);
  check_last(op, "a", a, pattern.rows());
  check_last(op, "b", b, pattern.columns());
  const auto leading = [](const Tensor& x) {
    return Shape(std::span<const int64_t>(x.shape().begin(), x.shape().end() - 1));
  };
  if (leading(a) != leading(b)) {
    throw ShapeError(op, "a and b with the same leading axes",
                     to_string(a.shape()) + " and " + to_string(b.shape()));
  }
  return {pattern, sampled(detail::flatten_rows(a), detail::flatten_rows(b), pattern)};
}

}  // namespace sash
