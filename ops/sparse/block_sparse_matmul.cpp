#include "block_sparse_matmul.h"

#include "../kernels/sparse.h"
#include "../linalg/matmul.h"
#include "../op.h"

namespace sash {

namespace kernels {
constinit decltype(block_sparse_matmul) block_sparse_matmul{"block_sparse_matmul"};
constinit decltype(sampled_matmul) sampled_matmul{"sampled_matmul"};
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
  run_kernel(kernels::block_sparse_matmul, rows, blocks, contiguous(bias),
             pattern.view(rows.device()), transposed, y);
  return record(transposed ? "block_sparse_linear" : "block_sparse_matmul", {rows, blocks, bias}, y,
                [a = save_if(data.requires_grad(), rows), data = save_if(a.requires_grad(), blocks),
                 pattern, transposed](Backward& pass, const Tensor& g) {
                  return gradients_of(
                      pass, [&] { return product(g, pass(data), {}, pattern, !transposed); },
                      [&] {
                        const Tensor in = pass(a);
                        return transposed ? sampled(g, in, pattern) : sampled(in, g, pattern);
                      },
                      [&] { return sum(g, {0}); });
                });
}

Tensor sampled(const Tensor& a, const Tensor& b, const BlockPattern& pattern) {
  const Tensor left = a.contiguous(), right = b.contiguous();
  const Tensor data = empty({pattern.blocks(), pattern.block(), pattern.block()}, left.options());
  run_kernel(kernels::sampled_matmul, left, right, pattern.view(left.device()), data);
  return record("sampled_matmul", {left, right}, data,
                [a = save_if(b.requires_grad(), left), b = save_if(a.requires_grad(), right),
                 pattern](Backward& pass, const Tensor& g) {
                  return gradients_of(
                      pass, [&] { return product(pass(b), g, {}, pattern, true); },
                      [&] { return product(pass(a), g, {}, pattern, false); });
                });
}

void check_last(const char* op, const char* what, const Tensor& x, int64_t extent) {
  check_min_rank(op, x, 1);
  if (x.size(-1) == extent) return;
  throw ShapeError(op, std::string(what) + " [..., " + std::to_string(extent) + "]",
                   to_string(x.shape()));
}

}  // namespace

Tensor block_sparse_linear(const Tensor& x, const BlockSparseMatrix& weight, const Tensor& bias) {
  constexpr const char* op = "block_sparse_linear";
  if (Autocast cast(op); cast) {
    return block_sparse_linear(cast(x), {weight.pattern(), cast(weight.data())}, cast(bias));
  }
  check_compatible(op, x, weight.data());
  check_last(op, "x", x, weight.columns());
  check_parameter(op, x, bias, {weight.rows()});
  return product(detail::flatten_rows(x), weight.data(), bias, weight.pattern(), true)
      .view(with_last(x, weight.rows()));
}

Tensor block_sparse_matmul(const Tensor& a, const BlockSparseMatrix& w) {
  constexpr const char* op = "block_sparse_matmul";
  if (Autocast cast(op); cast) {
    return block_sparse_matmul(cast(a), {w.pattern(), cast(w.data())});
  }
  check_compatible(op, a, w.data());
  check_last(op, "a", a, w.rows());
  return product(detail::flatten_rows(a), w.data(), {}, w.pattern(), false)
      .view(with_last(a, w.columns()));
}

BlockSparseMatrix sampled_matmul(const Tensor& a, const Tensor& b, const BlockPattern& pattern) {
  constexpr const char* op = "sampled_matmul";
  if (Autocast cast(op); cast) return sampled_matmul(cast(a), cast(b), pattern);
  check_floating_pair(op, a, b);
  check_last(op, "a", a, pattern.rows());
  check_last(op, "b", b, pattern.columns());
  if (without_axis(a, a.rank() - 1) != without_axis(b, b.rank() - 1)) {
    throw ShapeError(op, "a and b with the same leading axes", shapes_of(a, b));
  }
  return {pattern, sampled(detail::flatten_rows(a), detail::flatten_rows(b), pattern)};
}

}  // namespace sash
