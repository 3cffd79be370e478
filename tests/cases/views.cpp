#include <sash/ops/shape/views.h>

#include "cases.h"

namespace sash::testing {
namespace {

using Run = std::function<Tensor(const Tensor&)>;
using Source = std::function<Index(const Index&)>;  // where an element of the view comes from

void add_row(OpTable& table, const std::string& name, const std::string& option,
             const InputSpec& input, const Shape& shape, Run run, Source source) {
  table.push_back({
      .op = name,
      .variant = option + " of " + describe(input),
      .inputs = {input},
      .run = [run = std::move(run)](const Tensors& x) { return run(x[0]); },
      .reference =
          [shape, source = std::move(source)](const Arrays& x) {
            return generate(shape, [&](const Index& index) { return x[0][source(index)]; });
          },
      .dtypes = {DType::float32, DType::float64, DType::int64},
  });
}

// The same elements in the same order under another shape.
void add_reshaped(OpTable& table, const std::string& name, const std::string& option,
                  const InputSpec& input, const Shape& shape, Run run) {
  table.push_back({
      .op = name,
      .variant = option + " of " + describe(input),
      .inputs = {input},
      .run = [run = std::move(run)](const Tensors& x) { return run(x[0]); },
      .reference =
          [shape](const Arrays& x) {
            Array y = x[0];
            y.shape = shape;
            return y;
          },
  });
}

void add_shapes(OpTable& table) {
  const auto view_as = [](Shape shape) { return [=](const Tensor& x) { return x.view(shape); }; };
  const auto reshape_as = [](Shape shape) {
    return [=](const Tensor& x) { return x.reshape(shape); };
  };
  add_reshaped(table, "view", "[3, 4]", {.shape = {2, 6}}, {3, 4}, view_as({3, 4}));
  add_reshaped(table, "view", "[-1]", {.shape = {2, 3, 4}}, {24}, view_as({-1}));
  add_reshaped(table, "view", "[2, -1, 4]", {.shape = {6, 4}, .layout = Layout::padded}, {2, 3, 4},
               view_as({2, -1, 4}));
  add_reshaped(table, "view", "[1, 1]", {.shape = {}}, {1, 1}, view_as({1, 1}));
  add_reshaped(table, "view", "[5, 0]", {.shape = {0, 3}}, {5, 0}, view_as({5, 0}));
  add_reshaped(table, "reshape", "[4, 3]", {.shape = {3, 4}, .layout = Layout::transposed}, {4, 3},
               reshape_as({4, 3}));
  add_reshaped(table, "reshape", "[12]", {.shape = {3, 4}, .layout = Layout::expanded}, {12},
               reshape_as({12}));
  add_reshaped(table, "reshape", "[2, -1]", {.shape = {2, 3, 4}, .layout = Layout::heads}, {2, 12},
               reshape_as({2, -1}));
  add_reshaped(table, "reshape", "[65, 64]", {.shape = {64, 65}}, {65, 64}, reshape_as({65, 64}));
  add_reshaped(table, "flatten", "all", {.shape = {2, 3, 2}}, {12},
               [](const Tensor& x) { return x.flatten(); });
  add_reshaped(table, "flatten", "1 to 2", {.shape = {2, 3, 2, 2}}, {2, 6, 2},
               [](const Tensor& x) { return x.flatten(1, 2); });
  add_reshaped(table, "flatten", "0 to 1", {.shape = {2, 3, 2}, .layout = Layout::heads}, {6, 2},
               [](const Tensor& x) { return x.flatten(0, 1); });
  add_reshaped(table, "squeeze", "1", {.shape = {3, 1, 4}}, {3, 4},
               [](const Tensor& x) { return x.squeeze(1); });
  add_reshaped(table, "squeeze", "an axis that stays", {.shape = {3, 1, 4}}, {3, 1, 4},
               [](const Tensor& x) { return x.squeeze(-1); });
  add_reshaped(table, "squeeze", "all", {.shape = {1, 3, 1, 4}, .layout = Layout::transposed},
               {3, 4}, [](const Tensor& x) { return x.squeeze(); });
  add_reshaped(table, "unsqueeze", "-1", {.shape = {3, 4}, .layout = Layout::transposed}, {3, 4, 1},
               [](const Tensor& x) { return x.unsqueeze(-1); });
  add_reshaped(table, "unsqueeze", "0", {.shape = {3}}, {1, 3},
               [](const Tensor& x) { return x.unsqueeze(0); });
}

void add_orders(OpTable& table) {
  for (const Layout layout : {Layout::contiguous, Layout::heads, Layout::sliced}) {
    const InputSpec input{.shape = {2, 3, 4}, .layout = layout};
    add_row(
        table, "permute", "2, 0, 1", input, {4, 2, 3},
        [](const Tensor& x) {
          return x.permute({2, 0, 1});
        },
        [](const Index& i) {
          return Index{i[1], i[2], i[0]};
        });
    add_row(
        table, "transpose", "0, 2", input, {4, 3, 2},
        [](const Tensor& x) { return x.transpose(0, 2); },
        [](const Index& i) {
          return Index{i[2], i[1], i[0]};
        });
    add_row(
        table, "mT", "mT", input, {2, 4, 3}, [](const Tensor& x) { return x.mT(); },
        [](const Index& i) {
          return Index{i[0], i[2], i[1]};
        });
  }
}

void add_expansions(OpTable& table) {
  add_row(
      table, "expand", "[2, 3, 4]", {.shape = {3, 1}}, {2, 3, 4},
      [](const Tensor& x) {
        return x.expand({2, 3, 4});
      },
      [](const Index& i) {
        return Index{i[1], 0};
      });
  add_row(
      table, "expand", "[5, -1]", {.shape = {1, 4}, .layout = Layout::sliced}, {5, 4},
      [](const Tensor& x) {
        return x.expand({5, -1});
      },
      [](const Index& i) {
        return Index{0, i[1]};
      });
  add_row(
      table, "expand", "[0, 3]", {.shape = {3}}, {0, 3},
      [](const Tensor& x) {
        return x.expand({0, 3});
      },
      [](const Index& i) { return Index{i[1]}; });
}

void add_parts(OpTable& table) {
  const InputSpec input{.shape = {5, 7}, .layout = Layout::transposed};
  add_row(
      table, "slice", "1, 1:6:2", input, {5, 3},
      [](const Tensor& x) { return x.slice(1, 1, 6, 2); },
      [](const Index& i) {
        return Index{i[0], 1 + 2 * i[1]};
      });
  add_row(
      table, "slice", "0, -3:", input, {3, 7}, [](const Tensor& x) { return x.slice(0, -3); },
      [](const Index& i) {
        return Index{i[0] + 2, i[1]};
      });
  add_row(
      table, "slice", "0, 2:99:3", input, {1, 7},
      [](const Tensor& x) { return x.slice(0, 2, 99, 3); },
      [](const Index& i) {
        return Index{i[0] + 2, i[1]};
      });
  add_row(
      table, "slice", "0, 4:2", input, {0, 7}, [](const Tensor& x) { return x.slice(0, 4, 2); },
      [](const Index& i) { return i; });
  add_row(
      table, "narrow", "1, 2, 4", input, {5, 4}, [](const Tensor& x) { return x.narrow(1, 2, 4); },
      [](const Index& i) {
        return Index{i[0], i[1] + 2};
      });
  add_row(
      table, "select", "1, -2", input, {5}, [](const Tensor& x) { return x.select(1, -2); },
      [](const Index& i) {
        return Index{i[0], 5};
      });
  add_row(
      table, "operator[]", "3", input, {7}, [](const Tensor& x) { return x[3]; },
      [](const Index& i) {
        return Index{3, i[0]};
      });
}

void add_unslice(OpTable& table) {
  for (const Layout layout : {Layout::contiguous, Layout::transposed}) {
    const InputSpec input{.shape = {2, 3}, .layout = layout};
    table.push_back({
        .op = "unslice",
        .variant = "axis 1 from 1 by 2, " + describe(input),
        .inputs = {input},
        .run =
            [](const Tensors& x) {
              return unslice(x[0], {2, 7}, 1, 1, 2);
            },
        .reference =
            [](const Arrays& x) {
              Array y({2, 7});
              for_each_index({2, 3}, [&](const Index& i) { y[{i[0], 1 + 2 * i[1]}] = x[0][i]; });
              return y;
            },
    });
  }
}

}  // namespace

void add_views(OpTable& table) {
  add_shapes(table);
  add_orders(table);
  add_expansions(table);
  add_parts(table);
  add_unslice(table);
}

}  // namespace sash::testing
