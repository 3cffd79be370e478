#include <sash/ops/index/gather.h>

#include "cases.h"

namespace sash::testing {
namespace {

int64_t at(const Array& index, const Index& position) {
  return static_cast<int64_t>(index[position]);
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
            return generate(t[1].shape,
                            [&](const Index& i) { return t[0][replaced(i, along, at(t[1], i))]; });
          },
  });
}

void add_scatter_case(OpTable& table, const InputSpec& x, int64_t axis, const InputSpec& index,
                      const InputSpec& src) {
  table.push_back({
      .op = "scatter_add",
      .variant = "axis " + std::to_string(axis) + " of " + describe(x) + " at " + describe(index) +
                 " from " + describe(src),
      .inputs = {x, index, src},
      .run = [axis](const Tensors& t) { return scatter_add(t[0], axis, t[1], t[2]); },
      .reference =
          [axis](const Arrays& t) {
            const int along = positive(axis, t[0].shape.rank());
            Array y = t[0];
            for_each_index(t[1].shape,
                           [&](const Index& i) { y[replaced(i, along, at(t[1], i))] += t[2][i]; });
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
              return t[0][replaced(i, along, at(t[1], {i[along]}))];
            });
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
  add_one_hot(table);
}

}  // namespace sash::testing
