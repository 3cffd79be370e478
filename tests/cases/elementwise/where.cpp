#include <sash/ops/elementwise/where.h>

#include "../cases.h"

namespace sash::testing {
namespace {

InputSpec mask_of(Shape shape, Layout layout = Layout::contiguous) {
  return {.shape = shape, .layout = layout, .low = 0, .high = 2, .dtype = DType::boolean};
}

const std::vector<DType> kSome{DType::float32, DType::float64, DType::int64};

void add_choice(OpTable& table, const InputSpec& cond, const InputSpec& a, const InputSpec& b) {
  table.push_back({
      .op = "where",
      .variant = describe(cond) + ", " + describe(a) + ", " + describe(b),
      .inputs = {cond, a, b},
      .run = [](const Tensors& x) { return where(x[0], x[1], x[2]); },
      .reference =
          [](const Arrays& x) {
            const Shape shape =
                broadcast_shape(x[0].shape, broadcast_shape(x[1].shape, x[2].shape));
            return generate(shape, [&](const Index& index) {
              return x[0].broadcast(index) != 0 ? x[1].broadcast(index) : x[2].broadcast(index);
            });
          },
      .dtypes = kSome,
  });
}

void add_mixed(OpTable& table) {
  const InputSpec whole{
      .shape = {3, 4}, .low = -9, .high = 9, .dtype = DType::int64, .requires_grad = false};
  add_choice(table, mask_of({3, 4}), whole, {.shape = {4}});
  table.back().variant += ", int64 and floating";
  table.back().dtypes = {DType::float32, DType::float64};
}

void add_scalars(OpTable& table) {
  const auto add = [&](const char* variant, auto run, double yes, double no,
                       std::vector<DType> results) {
    table.push_back({
        .op = "where",
        .variant = variant,
        .inputs = {mask_of({3, 1}), {.shape = {4}}},
        .run = run,
        .reference =
            [yes, no](const Arrays& x) {
              const bool plain = !std::isnan(yes) && !std::isnan(no);
              return generate(plain ? Shape{3, 1} : Shape{3, 4}, [&](const Index& index) {
                const double chosen = x[0].broadcast(index) != 0 ? yes : no;
                return std::isnan(chosen) ? x[1].broadcast(index) : chosen;
              });
            },
        .dtypes = kSome,
        .results = std::move(results),
        .differentiable = !std::isnan(yes) != !std::isnan(no),
    });
  };
  using T = const Tensors&;
  add("x or 3", [](T x) { return where(x[0], x[1], 3); }, kNaN, 3, {});
  add("3 or x", [](T x) { return where(x[0], 3, x[1]); }, 3, kNaN, {});
  add("3 or 4", [](T x) { return where(x[0], 3, 4); }, 3, 4, {DType::int64});
  add("0.5 or 4", [](T x) { return where(x[0], 0.5, 4); }, 0.5, 4, {DType::float32});
}

void add_fill(OpTable& table, const InputSpec& x, const InputSpec& mask, double value) {
  table.push_back({
      .op = "masked_fill",
      .variant = describe(x) + ", " + describe(mask),
      .inputs = {x, mask},
      .run = [value](const Tensors& t) { return masked_fill(t[0], t[1], value); },
      .reference =
          [value](const Arrays& t) {
            return generate(t[0].shape, [&](const Index& index) {
              return t[1].broadcast(index) != 0 ? value : t[0][index];
            });
          },
      .dtypes = kSome,
  });
}

}  // namespace

void add_where(OpTable& table) {
  add_choice(table, mask_of({3, 4}), {.shape = {3, 4}}, {.shape = {3, 4}});
  add_choice(table, mask_of({3, 1}), {.shape = {4}}, {.shape = {2, 1, 1}});
  add_choice(table, mask_of({}), {.shape = {3}}, {.shape = {}});
  add_choice(table, mask_of({5, 3}, Layout::transposed),
             {.shape = {5, 3}, .layout = Layout::sliced},
             {.shape = {5, 3}, .layout = Layout::expanded});
  add_choice(table, mask_of({65, 63}), {.shape = {65, 63}}, {.shape = {63}});
  add_choice(table, mask_of({0, 2}), {.shape = {0, 2}}, {.shape = {2}});

  add_mixed(table);
  add_scalars(table);

  add_fill(table, {.shape = {3, 4}}, mask_of({3, 4}), -1);
  add_fill(table, {.shape = {2, 3, 4}}, mask_of({3, 1}), 7);
  add_fill(table, {.shape = {4, 3}, .layout = Layout::transposed}, mask_of({4, 3}), 0);
  add_fill(table, {.shape = {65, 130}}, mask_of({130}), 2);
  add_fill(table, {.shape = {0}}, mask_of({0}), 2);
}

}  // namespace sash::testing
