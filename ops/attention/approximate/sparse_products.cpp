#include "sparse_products.h"

#include "../../index/index_checks.h"
#include "../../kernels/sparse_products.h"
#include "../../op.h"

namespace sash {

namespace kernels {
constinit decltype(sparse_dot) sparse_dot{"sparse_dot"};
constinit decltype(sparse_rows) sparse_rows{"sparse_rows"};
constinit decltype(sparse_table) sparse_table{"sparse_table"};
}  // namespace kernels

namespace {

// The three are derivatives of one form in w, x and table: the gradients of each are the others.
// All take an index that has been checked.

Tensor dot(const Tensor& x, const Tensor& table, const Tensor& index);
Tensor rows(const Tensor& w, const Tensor& table, const Tensor& index);
Tensor table_of(const Tensor& w, const Tensor& x, const Tensor& index, const Shape& shape);

// [B, H, ...] as [B H, ...].
TensorView flat(const Tensor& x) {
  return contiguous_view(x, {x.size(0) * x.size(1), x.size(2), x.size(3)});
}

void run(const Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                           const TensorView&)>& kernel,
         const Tensor& a, const Tensor& b, const Tensor& index, const Tensor& y) {
  run_kernel(kernel, flat(a), flat(b), flat(index), flat(y));
}

Tensor dot(const Tensor& x_any, const Tensor& table_any, const Tensor& index) {
  const Tensor x = x_any.contiguous(), table = table_any.contiguous();
  const Tensor w = empty(index.shape(), x.options());
  run(kernels::sparse_dot, x, table, index, w);
  return record(
      "sparse_dot_product", {x, table}, w,
      [x = save(x), table = save(table), index = save(index)](Backward& pass, const Tensor& g) {
        const Tensor list = pass(index), t = pass(table);
        return gradients_of(
            pass, [&] { return rows(g, t, list); },
            [&] { return table_of(g, pass(x), list, t.shape()); });
      });
}

Tensor rows(const Tensor& w_any, const Tensor& table_any, const Tensor& index) {
  const Tensor w = w_any.contiguous(), table = table_any.contiguous();
  const Tensor x = empty(with_last(index, table.size(3)), w.options());
  run(kernels::sparse_rows, w, table, index, x);
  return record(
      "sparse_weighted_average", {w, table}, x,
      [w = save(w), table = save(table), index = save(index)](Backward& pass, const Tensor& g) {
        const Tensor list = pass(index), t = pass(table);
        return gradients_of(
            pass, [&] { return dot(g, t, list); },
            [&] { return table_of(pass(w), g, list, t.shape()); });
      });
}

Tensor table_of(const Tensor& w_any, const Tensor& x_any, const Tensor& index, const Shape& shape) {
  const Tensor w = w_any.contiguous(), x = x_any.contiguous();
  const Tensor table = empty(shape, w.options());
  run(kernels::sparse_table, w, x, index, table);
  return record("sparse_products", {w, x}, table,
                [w = save(w), x = save(x), index = save(index)](Backward& pass, const Tensor& g) {
                  const Tensor list = pass(index);
                  return gradients_of(
                      pass, [&] { return dot(pass(x), g, list); },
                      [&] { return rows(pass(w), g, list); });
                });
}

// `last` is the extent that the last axis of `x` must have.
Tensor checked_index(const char* op, const Tensor& x, const char* x_name, int64_t last,
                     const Tensor& table, const char* table_name, const Tensor& index) {
  const Shape &a = x.shape(), &t = table.shape(), &i = index.shape();
  const bool fits = a[0] == t[0] && a[0] == i[0] && a[1] == i[1] && a[2] == i[2] && a[3] == last &&
                    (t[1] == 0 ? a[1] == 0 : a[1] % t[1] == 0);
  if (!fits) {
    throw ShapeError(op,
                     std::string(x_name) + ", " + table_name +
                         " [B, H_kv, S, D] and an index [B, H, N, K], H a multiple of H_kv",
                     to_string(a) + ", " + to_string(t) + " and " + to_string(i));
  }
  const Tensor list = index.contiguous();
  check_index_values(op, list, t[2], -1);
  return list;
}

void check_operands(const char* op, const Tensor& x, const Tensor& table, const Tensor& index) {
  check_floating_pair(op, x, table);
  check_index_tensor(op, x, index);
  for (const Tensor* t : {&x, &table, &index}) check_rank(op, *t, 4);
}

}  // namespace

Tensor sparse_dot_product(const Tensor& q, const Tensor& k, const Tensor& index) {
  constexpr const char* op = "sparse_dot_product";
  if (Autocast cast(op); cast) return sparse_dot_product(cast(q), cast(k), index);
  check_operands(op, q, k, index);
  return dot(q, k, checked_index(op, q, "q [B, H, N, D]", k.shape()[3], k, "k", index));
}

Tensor sparse_weighted_average(const Tensor& w, const Tensor& v, const Tensor& index) {
  constexpr const char* op = "sparse_weighted_average";
  if (Autocast cast(op); cast) return sparse_weighted_average(cast(w), cast(v), index);
  check_operands(op, w, v, index);
  return rows(w, v, checked_index(op, w, "w [B, H, N, K]", index.shape()[3], v, "v", index));
}

}  // namespace sash
