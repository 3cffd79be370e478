#include "embedding.h"

#include "../kernels/index.h"
#include "../op.h"
#include "index_checks.h"

namespace sash {

namespace kernels {
constinit decltype(embedding_forward) embedding_forward{"embedding_forward"};
constinit decltype(embedding_backward) embedding_backward{"embedding_backward"};
}  // namespace kernels

namespace {

// Both below take a contiguous index that has been checked.

Tensor add_up(const Tensor& grad, const Tensor& index, int64_t rows);

Tensor look_up(const Tensor& weight, const Tensor& index, std::optional<int64_t> padding_idx = {}) {
  const Tensor table = weight.contiguous();
  const int64_t rows = table.shape()[0], width = table.shape()[1];
  Shape shape = index.shape();
  shape.push_back(width);
  const Tensor y = empty(shape, table.options());
  run_kernel(kernels::embedding_forward, table, vector_view(index),
             matrix_view(y, index.numel(), width));
  return record("embedding", {table}, y,
                [index = save(index), rows, padding_idx](Backward& pass, const Tensor& g) {
                  const Tensor in = pass(index);
                  if (!padding_idx) return Gradients{add_up(g, in, rows)};
                  const Tensor hidden = eq(in, *padding_idx).unsqueeze(-1);
                  return Gradients{add_up(masked_fill(g, hidden, 0), in, rows)};
                });
}

Tensor add_up(const Tensor& grad, const Tensor& index, int64_t rows) {
  const Tensor g = grad.contiguous();
  const int64_t width = g.shape().back();
  const Tensor dweight = empty({rows, width}, g.options());
  run_kernel(kernels::embedding_backward, matrix_view(g, index.numel(), width), vector_view(index),
             dweight);
  return record("embedding_backward", {g}, dweight,
                [index = save(index)](Backward& pass, const Tensor& h) {
                  return Gradients{look_up(h, pass(index))};
                });
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& index, std::optional<int64_t> padding_idx) {
  constexpr const char* op = "embedding";
  check_defined(op, weight);
  check_rank(op, weight, 2);
  check_index_tensor(op, weight, index);
  check_room_for_axis(op, index);
  const Tensor in = index.contiguous();
  check_index_values(op, in, weight.shape()[0]);
  if (padding_idx && (*padding_idx < 0 || *padding_idx >= weight.shape()[0])) {
    throw IndexError(op, "a padding_idx in [0, " + std::to_string(weight.shape()[0]) + ")",
                     std::to_string(*padding_idx));
  }
  return look_up(weight, in, padding_idx);
}

Tensor embedding_backward(const Tensor& g, const Tensor& index, int64_t rows) {
  constexpr const char* op = "embedding_backward";
  check_floating(op, g);
  check_min_rank(op, g, 1);
  check_index_tensor(op, g, index);
  check_room_for_axis(op, index);
  Shape expected = index.shape();
  expected.push_back(g.shape().back());
  check_shape(op, g, expected);
  check_not_negative(op, "a number of rows", rows);
  const Tensor in = index.contiguous();
  check_index_values(op, in, rows);
  return add_up(g, in, rows);
}

}  // namespace sash
