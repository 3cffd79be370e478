#include "einsum.h"

#include "../op.h"
#include "einsum_plan.h"
#include "matmul.h"

namespace sash {
namespace {

using detail::EinsumPlan;

/// x_ii along the two axes, in the place of the first, which comes before the second.
Tensor diagonal(const Tensor& x, int first, int second) {
  const int64_t n = x.size(first);
  if (x.size(second) != n) {
    throw ShapeError("einsum", "a diagonal of equal extents", to_string(x.shape()));
  }
  Dims order;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (axis == second) continue;
    order.push_back(axis);
    if (axis == first) order.push_back(second);
  }
  // Side by side they are one axis of a view, with n + 1 elements from one to the next.
  return x.permute(order).flatten(first, first + 1).slice(first, 0, n * n, n + 1);
}

Tensor start(Tensor x, const EinsumPlan::Start& plan) {
  for (const auto& [first, second] : plan.diagonals) x = diagonal(x, first, second);
  return plan.sums.empty() ? x : sum(x, plan.sums);
}

/// Extents [from, from + count) of a shape.
Shape part(const Shape& shape, int from, int count) {
  return Shape(std::span(shape.begin() + from, static_cast<size_t>(count)));
}

Shape joined(Shape a, const Shape& b) {
  for (const int64_t extent : b) a.push_back(extent);
  return a;
}

/// Expands x's axes [x_from, + count) of extent 1 to those of y.
Tensor broadcast(const Tensor& x, int x_from, const Tensor& y, int y_from, int count) {
  Shape shape = x.shape();
  for (int i = 0; i < count; ++i) {
    if (shape[x_from + i] == 1) shape[x_from + i] = y.shape()[y_from + i];
  }
  return x.expand(shape);
}

Tensor contract(const Tensor& a, const Tensor& b, const EinsumPlan::Step& step) {
  Tensor left = a.permute(step.left_order), right = b.permute(step.right_order);
  const int both = step.both, rows = step.left_only, columns = step.right_only;
  const int inner = left.rank() - both - rows;
  const Shape row_shape = part(left.shape(), both, rows);
  const Shape column_shape = part(right.shape(), both + inner, columns);
  if (inner == 0) {
    const Shape wide = joined(part(left.shape(), 0, both + rows), Shape::filled(columns, 1));
    const Shape high =
        joined(joined(part(right.shape(), 0, both), Shape::filled(rows, 1)), column_shape);
    return left.reshape(wide) * right.reshape(high);
  }
  left = broadcast(left, both + rows, right, both, inner);
  right = broadcast(right, both, left, both + rows, inner);
  const int64_t depth = numel(part(right.shape(), both, inner));
  const Tensor product =
      matmul(left.reshape(joined(part(left.shape(), 0, both), {numel(row_shape), depth})),
             right.reshape(joined(part(right.shape(), 0, both), {depth, numel(column_shape)})));
  return product.reshape(joined(joined(part(product.shape(), 0, both), row_shape), column_shape));
}

}  // namespace

Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  constexpr const char* op = "einsum";
  if (Autocast cast(op); cast) {
    std::vector<Tensor> halves;
    for (const Tensor& x : operands) halves.push_back(cast(x));
    return einsum(equation, halves);
  }
  if (operands.empty()) throw ValueError(op, "an operand", "none");
  std::vector<Shape> shapes;
  for (const Tensor& x : operands) {
    check_compatible(op, operands[0], x);
    check_not_bool(op, x);
    shapes.push_back(x.shape());
  }
  const auto plan = detail::einsum_plan(equation, shapes);
  const DType dtype = operands[0].dtype();
  const bool wide = is_half(dtype) && (operands[0].device().is_cpu() || operands.size() != 2);
  const DType working = wide ? DType::float32 : is_integral(dtype) ? DType::int64 : dtype;
  std::vector<Tensor> terms;
  for (size_t i = 0; i < operands.size(); ++i) {
    terms.push_back(start(operands[i].to(working), plan->starts[i]));
  }
  for (const EinsumPlan::Step& step : plan->steps) {
    const Tensor result = contract(terms[step.left], terms[step.right], step);
    terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(step.right));
    terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(step.left));
    terms.push_back(result);
  }
  const Tensor y = terms[0].permute(plan->result_order).to(dtype);
  return y;
}

}  // namespace sash
