#include <sash/ops/attention/approximate/sparse_products.h>

#include "../cases.h"

namespace sash::testing {
namespace {

struct Sizes {
  int64_t batch, heads, kv_heads, rows, entries, table_rows, depth;
};

// Row `s` of the table that head `at[1]` reads; the list says -1 for none.
struct Chosen {
  const Arrays& t;
  int64_t key(const Index& at) const { return static_cast<int64_t>(t[2][at]); }
  double value(const Index& at, int64_t d) const {
    if (key(at) < 0) return 0;
    const int64_t shared = t[2].shape[1] / t[1].shape[1];
    return t[1][{at[0], at[1] / shared, key(at), d}];
  }
};

void add_cases(OpTable& table, const Sizes& s, Layout layout = contiguous, bool timed = false) {
  const InputSpec index{.shape = {s.batch, s.heads, s.rows, s.entries},
                        .layout = layout == heads ? contiguous : layout,
                        .low = -1,
                        .high = static_cast<double>(s.table_rows),
                        .dtype = DType::int64};
  const InputSpec rows{{s.batch, s.heads, s.rows, s.depth}, layout};
  const InputSpec keys{{s.batch, s.kv_heads, s.table_rows, s.depth}, layout};
  const InputSpec weights{{s.batch, s.heads, s.rows, s.entries}, layout};
  table.push_back({
      .op = "sparse_dot_product",
      .variant = (timed ? "timed " : "") + describe(rows) + " with " + describe(keys) + " at " +
                 describe(index),
      .inputs = {rows, keys, index},
      .run = [](const Tensors& t) { return sparse_dot_product(t[0], t[1], t[2]); },
      .reference =
          [](const Arrays& t) {
            return generate(t[2].shape, [&](const Index& at) {
              double sum = 0;
              for (int64_t d = 0; d < t[0].shape[3]; ++d) {
                sum += t[0][replaced(at, 3, d)] * Chosen{t}.value(at, d);
              }
              return sum;
            });
          },
      .timed = timed,
  });
  table.push_back({
      .op = "sparse_weighted_average",
      .variant = (timed ? "timed " : "") + describe(weights) + " of " + describe(keys) + " at " +
                 describe(index),
      .inputs = {weights, keys, index},
      .run = [](const Tensors& t) { return sparse_weighted_average(t[0], t[1], t[2]); },
      .reference =
          [](const Arrays& t) {
            return generate(replaced(t[0].shape, 3, t[1].shape[3]), [&](const Index& at) {
              double sum = 0;
              for (int64_t j = 0; j < t[2].shape[3]; ++j) {
                const Index entry = replaced(at, 3, j);
                sum += t[0][entry] * Chosen{t}.value(entry, at[3]);
              }
              return sum;
            });
          },
      .timed = timed,
  });
}

}  // namespace

void add_sparse_products(OpTable& table) {
  add_cases(table, {1, 1, 1, 3, 2, 4, 3});
  add_cases(table, {2, 4, 2, 3, 5, 3, 2}, heads);
  add_cases(table, {1, 2, 1, 5, 3, 9, 8}, transposed);
  add_cases(table, {2, 2, 2, 33, 17, 40, 65});
  add_cases(table, {1, 2, 2, 70, 3, 2, 64}, padded);
  add_cases(table, {1, 2, 1, 4, 0, 3, 5});
  add_cases(table, {1, 2, 1, 0, 2, 3, 5});
  add_cases(table, {1, 8, 8, 1024, 32, 8192, 64}, contiguous, true);
}

}  // namespace sash::testing
