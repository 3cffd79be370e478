#include <sash/ops/elementwise/compare.h>
#include <sash/ops/index/indexing.h>
#include <sash/ops/shape/concat.h>

#include "cases.h"

namespace sash::testing {
namespace {

using X = const Tensors&;
using A = const Arrays&;

const std::vector<DType> kSome{DType::float32, DType::float64, DType::int64};

/// Indices in [-count, count).
InputSpec ends(const Shape& shape, int64_t count, Layout layout = contiguous) {
  InputSpec spec = indices(shape, count, layout);
  spec.low = -spec.high;
  return spec;
}

/// A mask with these elements.
InputSpec mask_of(const Shape& shape, std::vector<double> elements) {
  return {.shape = shape, .dtype = DType::boolean, .elements = std::move(elements)};
}

int64_t entry(const Array& index, I position, int64_t extent) {
  const auto found = static_cast<int64_t>(index.broadcast(position));
  return found < 0 ? found + extent : found;
}

/// Element i of x[...] is element source(x, i) of x.
struct Row {
  std::string variant;
  std::vector<InputSpec> inputs;
  Shape shape;
  Tensor (*run)(X);
  Index (*source)(A, I);
};

std::vector<Row> rows(Layout layout) {
  const InputSpec x{{4, 5, 6}, layout};
  return {
      {"0, :, -1",
       {x},
       {5},
       [](X t) {
         return t[0][{0, Slice(), -1}];
       },
       [](A, I i) { return at(0, i[0], 5); }},
      {"..., 1::2",
       {x},
       {4, 5, 3},
       [](X t) {
         return t[0][{kEllipsis, Slice(1, {}, 2)}];
       },
       [](A, I i) { return at(i[0], i[1], 1 + 2 * i[2]); }},
      {":, None, -3:-1, ..., None, 2",
       {x},
       {4, 1, 2, 1},
       [](X t) {
         return t[0][{Slice(), kNewAxis, Slice(-3, -1), kEllipsis, kNewAxis, 2}];
       },
       [](A, I i) { return at(i[0], 2 + i[2], 2); }},
      {"rows",
       {x, ends({2, 3}, 4)},
       {2, 3, 5, 6},
       [](X t) { return t[0][t[1]]; },
       [](A a, I i) { return at(entry(a[1], at(i[0], i[1]), 4), i[2], i[3]); }},
      {":, columns",
       {x, ends({3}, 5)},
       {4, 3, 6},
       [](X t) {
         return t[0][{Slice(), t[1]}];
       },
       [](A a, I i) { return at(i[0], entry(a[1], at(i[1]), 5), i[2]); }},
      {"rows, columns",
       {x, ends({3, 1}, 4), ends({2}, 5)},
       {3, 2, 6},
       [](X t) {
         return t[0][{t[1], t[2]}];
       },
       [](A a, I i) {
         return at(entry(a[1], at(i[0], i[1]), 4), entry(a[2], at(i[0], i[1]), 5), i[2]);
       }},
      {"1:, b, c",
       {x, ends({7}, 5), ends({7}, 6)},
       {3, 7},
       [](X t) {
         return t[0][{Slice(1), t[1], t[2]}];
       },
       [](A a, I i) { return at(i[0] + 1, entry(a[1], at(i[1]), 5), entry(a[2], at(i[1]), 6)); }},
      {"a, :, c",
       {x, ends({7}, 4), ends({7}, 6)},
       {7, 5},
       [](X t) {
         return t[0][{t[1], Slice(), t[2]}];
       },
       [](A a, I i) { return at(entry(a[1], at(i[0]), 4), i[1], entry(a[2], at(i[0]), 6)); }},
      {"a, None, c",
       {x, ends({7}, 4), ends({7}, 5)},
       {7, 1, 6},
       [](X t) {
         return t[0][{t[1], kNewAxis, t[2]}];
       },
       [](A a, I i) { return at(entry(a[1], at(i[0]), 4), entry(a[2], at(i[0]), 5), i[2]); }},
      {"mask",
       {x, mask_of({4}, {1, 0, 0, 1})},
       {2, 5, 6},
       [](X t) { return t[0][t[1]]; },
       [](A, I i) { return at(3 * i[0], i[1], i[2]); }},
      {"..., mask of two axes",
       {x, mask_of({5, 6},
                   [] {
                     std::vector<double> bits(30, 0.0);
                     for (const size_t set : {1U, 8U, 15U, 29U}) bits[set] = 1;
                     return bits;
                   }())},
       {4, 4},
       [](X t) {
         return t[0][{kEllipsis, t[1]}];
       },
       [](A, I i) { return at(i[0], i[1] == 3 ? 4 : i[1], i[1] == 3 ? 5 : 1 + i[1]); }},
      {"mask, columns",
       {x, mask_of({4}, {0, 1, 1, 0}), ends({2}, 5)},
       {2, 6},
       [](X t) {
         return t[0][{t[1], t[2]}];
       },
       [](A a, I i) { return at(1 + i[0], entry(a[2], at(i[0]), 5), i[1]); }},
      {"an empty mask",
       {x, mask_of({4}, {0, 0, 0, 0})},
       {0, 5, 6},
       [](X t) { return t[0][t[1]]; },
       [](A, I i) { return i; }},
      {"no rows",
       {x, indices({0}, 4)},
       {0, 5, 6},
       [](X t) { return t[0][t[1]]; },
       [](A, I i) { return i; }},
  };
}

/// The same elements are written.
struct Put {
  std::string variant;
  std::vector<InputSpec> inputs;  // x, the indices, the values
  Shape shape;                    // of x[...]
  void (*run)(Tensor& y, X, bool accumulate);
  Index (*target)(A, I);
};

std::vector<Put> puts(Layout layout) {
  const InputSpec x{{4, 5, 6}, layout};
  return {
      {"rows",
       {x, ends({9}, 4), {{9, 5, 6}}},
       {9, 5, 6},
       [](Tensor& y, X t, bool add) { y.index_put_({t[1]}, t[2], add); },
       [](A a, I i) { return at(entry(a[1], at(i[0]), 4), i[1], i[2]); }},
      {"rows, broadcast",
       {x, ends({2, 3}, 4), {{6}}},
       {2, 3, 5, 6},
       [](Tensor& y, X t, bool add) { y.index_put_({t[1]}, t[2], add); },
       [](A a, I i) { return at(entry(a[1], at(i[0], i[1]), 4), i[2], i[3]); }},
      {"0, b, c",
       {x, ends({40}, 5), ends({40}, 6), {{40}}},
       {40},
       [](Tensor& y, X t, bool add) {
         y.index_put_({0, t[1], t[2]}, t[3], add);
       },
       [](A a, I i) { return at(0, entry(a[1], i, 5), entry(a[2], i, 6)); }},
      {"a, :, c",
       {x, ends({7}, 4), ends({7}, 6), {{7, 5}}},
       {7, 5},
       [](Tensor& y, X t, bool add) {
         y.index_put_({t[1], Slice(), t[2]}, t[3], add);
       },
       [](A a, I i) { return at(entry(a[1], at(i[0]), 4), i[1], entry(a[2], at(i[0]), 6)); }},
      {"mask",
       {x, mask_of({4}, {1, 0, 0, 1}), {{2, 5, 6}}},
       {2, 5, 6},
       [](Tensor& y, X t, bool add) { y.index_put_({t[1]}, t[2], add); },
       [](A, I i) { return at(3 * i[0], i[1], i[2]); }},
      {"1, ..., ::5",
       {x, {{5, 2}}},
       {5, 2},
       [](Tensor& y, X t, bool add) {
         y.index_put_({1, kEllipsis, Slice({}, {}, 5)}, t[1], add);
       },
       [](A, I i) { return at(1, i[0], 5 * i[1]); }},
  };
}

void add_read(OpTable& table, const Row& row) {
  table.push_back({
      .op = "index",
      .variant = row.variant + " of " + describe(row.inputs[0]),
      .inputs = row.inputs,
      .run = [run = row.run](X x) { return run(x); },
      .reference =
          [row](A x) { return generate(row.shape, [&](I i) { return x[0][row.source(x, i)]; }); },
      .dtypes = kSome,
  });
}

void add_write(OpTable& table, const Put& put, bool accumulate) {
  table.push_back({
      .op = "index_put_",
      .variant = put.variant + (accumulate ? ", added, " : ", ") + describe(put.inputs[0]),
      .inputs = put.inputs,
      .run =
          [=](X x) {
            Tensor y = stack({x[0], x[0]}, -1).select(-1, 0);  // a view with gaps
            put.run(y, x, accumulate);
            return y;
          },
      .reference =
          [=](A x) {
            Array y = x[0];
            for_each_index(put.shape, [&](I i) {
              double& to = y[put.target(x, i)];
              to = (accumulate ? to : 0) + x.back().broadcast(i);
            });
            return y;
          },
      .dtypes = kSome,
      .half_rounds = accumulate ? 4.0 : 1,
  });
}

void add_scalar_writes(OpTable& table) {
  const InputSpec x{{4, 5}};
  const auto add = [&](const char* variant, std::vector<InputSpec> inputs, auto run,
                       bool (*written)(A, I)) {
    table.push_back({
        .op = "index_put_",
        .variant = variant,
        .inputs = std::move(inputs),
        .run =
            [run](X t) {
              Tensor y = t[0].clone();
              run(y, t);
              return y;
            },
        .reference =
            [written](A t) {
              return generate(t[0].shape, [&](I i) { return written(t, i) ? 7 : t[0][i]; });
            },
        .dtypes = kSome,
    });
  };
  add(
      "a scalar, mask", {x, mask_of({4}, {0, 1, 0, 1})},
      [](Tensor& y, X t) { y.index_put_({t[1]}, 7); }, [](A, I i) { return i[0] % 2 == 1; });
  add(
      "a scalar, x > 1", {x}, [](Tensor& y, X) { y.index_put_({y.detach() > 1}, 7); },
      [](A t, I i) { return t[0][i] > 1; });
  add(
      "a scalar, rows", {x, {.shape = {2}, .dtype = DType::int64, .elements = {-1, 1}}},
      [](Tensor& y, X t) { y.index_put_({t[1]}, 7); },
      [](A, I i) { return i[0] == 1 || i[0] == 3; });
  add(
      "a scalar, :, 2", {x},
      [](Tensor& y, X) {
        y.index_put_({Slice(), 2}, 7);
      },
      [](A, I i) { return i[1] == 2; });
}

void add_nonzero(OpTable& table) {
  for (const DType dtype : {DType::boolean, DType::int64, DType::float32}) {
    for (const Shape& shape : {Shape{7}, Shape{3, 5}, Shape{2, 3, 4}, Shape{0, 3}, Shape{40000}}) {
      table.push_back({
          .op = "nonzero",
          .variant = std::string(name(dtype)) + " " + to_string(shape),
          .inputs = {{.shape = shape, .low = 0, .high = 2, .dtype = dtype}},
          .run = [](X x) { return nonzero(x[0] >= 1); },
          .reference =
              [](A x) {
                std::vector<Index> places;
                for_each_index(x[0].shape, [&](I i) {
                  if (x[0][i] >= 1) places.push_back(i);
                });
                return generate({static_cast<int64_t>(places.size()), x[0].shape.rank()}, [&](I i) {
                  return double(places[static_cast<size_t>(i[0])][static_cast<int>(i[1])]);
                });
              },
          .dtypes = {DType::float32},
          .results = {DType::int64},
          .differentiable = false,
      });
    }
  }
}

void add_counts(OpTable& table) {
  for (const int64_t axis : {0, 1}) {
    table.push_back({
        .op = "repeat_interleave",
        .variant = "3, 0, 2 along axis " + std::to_string(axis),
        .inputs = {{{3, 3}}, {.shape = {3}, .dtype = DType::int64, .elements = {3, 0, 2}}},
        .run = [axis](X x) { return repeat_interleave(x[0], x[1], axis); },
        .reference =
            [axis](A x) {
              const int along = static_cast<int>(axis);
              return generate(replaced(x[0].shape, along, 5),
                              [&](I i) { return x[0][replaced(i, along, i[along] < 3 ? 0 : 2)]; });
            },
        .dtypes = kSome,
    });
  }
}

}  // namespace

void add_indexing(OpTable& table) {
  for (const Layout layout : {contiguous, transposed, sliced}) {
    for (const Row& row : rows(layout)) add_read(table, row);
    for (const Put& put : puts(layout)) {
      add_write(table, put, false);
      add_write(table, put, true);
    }
  }
  add_scalar_writes(table);
  add_nonzero(table);
  add_counts(table);
}

}  // namespace sash::testing
