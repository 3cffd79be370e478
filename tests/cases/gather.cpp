#include <sash/ops/index/gather.h>

#include "cases.h"

namespace sash::testing {
namespace {

/// The index at `position`, from the start of an axis.
int64_t at(const Array& index, const Index& position, int64_t extent = 0) {
  const auto found = static_cast<int64_t>(index[position]);
  return found < 0 ? found + extent : found;
}

/// Whole numbers in [-count, count).
InputSpec either_end(const Shape& shape, int64_t count, Layout layout = contiguous) {
  InputSpec spec = indices(shape, count, layout);
  spec.low = -spec.high;
  return spec;
}

void add_gather_case(OpTable& table, const InputSpec& x, int64_t axis, const InputSpec& index) {
  table.push_back({
      .op = "gather",
      .variant = "axis " + std::to_string(axis) + " of " + describe(x) + " at " + describe(index),
      .inputs = {x, index},
      .run = [axis](const Tensors& t) { return gather(t[0], axis, t[1]); },
      .reference =
          [axis](const Arrays& t) {
            const int along = positive(axis, t[0].shape.rank());
            return generate(t[1].shape, [&](const Index& i) {
              return t[0][replaced(i, along, at(t[1], i, t[0].shape[along]))];
            });
          },
  });
}

void add_scatter_case(OpTable& table, const InputSpec& x, int64_t axis, const InputSpec& index,
                      const InputSpec& src, bool adds = true) {
  table.push_back({
      .op = adds ? "scatter_add" : "scatter",
      .variant = "axis " + std::to_string(axis) + " of " + describe(x) + " at " + describe(index) +
                 " from " + describe(src),
      .inputs = {x, index, src},
      .run =
          [axis, adds](const Tensors& t) {
            return (adds ? scatter_add : scatter)(t[0], axis, t[1], t[2]);
          },
      .reference =
          [axis, adds](const Arrays& t) {
            const int along = positive(axis, t[0].shape.rank());
            Array y = t[0];
            for_each_index(t[1].shape, [&](const Index& i) {
              double& to = y[replaced(i, along, at(t[1], i, y.shape[along]))];
              to = (adds ? to : 0) + t[2][i];
            });
            return y;
          },
  });
}

void add_select_case(OpTable& table, const InputSpec& x, int64_t axis, const InputSpec& index) {
  table.push_back({
      .op = "index_select",
      .variant = "axis " + std::to_string(axis) + " of " + describe(x) + " at " + describe(index),
      .inputs = {x, index},
      .run = [axis](const Tensors& t) { return index_select(t[0], axis, t[1]); },
      .reference =
          [axis](const Arrays& t) {
            const int along = positive(axis, t[0].shape.rank());
            return generate(replaced(t[0].shape, along, t[1].shape[0]), [&](const Index& i) {
              return t[0][replaced(i, along, at(t[1], {i[along]}, t[0].shape[along]))];
            });
          },
  });
}

void add_sums_case(OpTable& table, const InputSpec& x, int64_t axis, const InputSpec& index) {
  const int along = positive(axis, x.shape.rank());
  table.push_back({
      .op = "index_add",
      .variant = "axis " + std::to_string(axis) + " of " + describe(x) + " at " + describe(index),
      .inputs = {x, index, {replaced(x.shape, along, index.shape[0])}},
      .run = [axis](const Tensors& t) { return index_add(t[0], axis, t[1], t[2]); },
      .reference =
          [along](const Arrays& t) {
            Array y = t[0];
            for_each_index(t[2].shape, [&](const Index& i) {
              y[replaced(i, along, at(t[1], {i[along]}, y.shape[along]))] += t[2][i];
            });
            return y;
          },
  });
}

void add_one_hot(OpTable& table) {
  for (const Shape& shape : {Shape{7}, Shape{2, 3}, Shape{}, Shape{0}}) {
    table.push_back({
        .op = "one_hot",
        .variant = to_string(shape),
        .inputs = {indices(shape, 5)},
        .run = [](const Tensors& t) { return one_hot(t[0], 5); },
        .reference =
            [](const Arrays& t) {
              return generate(with(t[0].shape, t[0].shape.rank(), 5), [&](const Index& i) {
                const Index row = without(i, i.rank() - 1);
                return double(at(t[0], row) == i[i.rank() - 1]);
              });
            },
        .dtypes = {DType::float32},
        .results = {DType::int64},
        .differentiable = false,
    });
  }
}

}  // namespace

void add_gather(OpTable& table) {
  add_gather_case(table, {{6}}, 0, indices({9}, 6));
  add_gather_case(table, {{3, 4}}, 1, indices({3, 5}, 4));
  add_gather_case(table, {{3, 4}}, 0, indices({2, 4}, 3));
  add_gather_case(table, {{3, 4}, transposed}, 1, indices({2, 3}, 4, transposed));
  add_gather_case(table, {{2, 3, 4}, heads}, -2, indices({2, 5, 4}, 3));
  add_gather_case(table, {{65, 130}}, 1, indices({65, 1}, 130));
  add_gather_case(table, {{3, 4}}, 1, indices({3, 0}, 4));

  add_scatter_case(table, {{6}}, 0, indices({9}, 6), {{9}});
  add_scatter_case(table, {{3, 4}}, 1, indices({2, 5}, 4), {{3, 6}});
  add_scatter_case(table, {{3, 4}, sliced}, 0, indices({5, 4}, 3), {{5, 4}, transposed});
  add_scatter_case(table, {{65, 63}}, 1, indices({65, 64}, 63), {{65, 64}});

  add_select_case(table, {{4, 3}}, 0, indices({6}, 4));
  add_select_case(table, {{2, 5}, transposed}, 1, indices({3}, 5));
  add_select_case(table, {{2, 3, 4}, heads}, -2, indices({2}, 3));
  add_select_case(table, {{3, 2}}, 0, indices({0}, 3));

  const size_t first = table.size();
  add_gather_case(table, {{3, 4}}, 1, either_end({3, 5}, 4));
  add_gather_case(table, {{5, 64}}, 0, either_end({7, 64}, 5, expanded));
  add_scatter_case(table, {{3, 4}}, 0, either_end({6, 4}, 3), {{6, 4}});
  add_scatter_case(table, {{5, 3}}, 0, either_end({100, 3}, 5), {{100, 3}});
  add_select_case(table, {{4, 3}}, 0, either_end({6}, 4));
  for (size_t i = first; i < table.size(); ++i) table[i].variant += ", from either end";

  for (const bool few : {true, false}) {
    const int64_t n = few ? 5 : 100;
    add_scatter_case(table, {{6}}, 0, either_end({n}, 6), {{n}}, false);
    add_scatter_case(table, {{3, 4}}, 1, indices({2, n}, 4), {{3, n}}, false);
    add_scatter_case(table, {{6, 4}, sliced}, 0, indices({n, 4}, 6), {{n, 4}, transposed}, false);
    for (size_t i = table.size() - 3; i < table.size(); ++i) {
      table[i].dtypes = {DType::float32, DType::float64, DType::int64};
    }
  }

  add_sums_case(table, {{6}}, 0, either_end({9}, 6));
  add_sums_case(table, {{3, 4}, transposed}, -1, indices({5}, 4));
  add_sums_case(table, {{3, 65}}, 0, indices({100}, 3));
  add_sums_case(table, {{3, 2}}, 0, indices({0}, 3));
  add_one_hot(table);
}

}  // namespace sash::testing
