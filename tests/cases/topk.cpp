#include <sash/ops/index/topk.h>

#include <algorithm>
#include <numeric>

#include "cases.h"

namespace sash::testing {
namespace {

// Places of the elements in descending order; NaN first, ties by place.
std::vector<int64_t> order_of(const std::vector<double>& x) {
  std::vector<int64_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double p = x[static_cast<size_t>(a)], q = x[static_cast<size_t>(b)];
    return std::isnan(p) ? !std::isnan(q) : p > q;
  });
  return order;
}

void add_case(OpTable& table, const InputSpec& x, int64_t k, int64_t axis, bool indices,
              std::vector<DType> dtypes = kNumbers, bool timed = false) {
  const auto pick = [=](const Array& in) {
    const int at = positive(axis, in.shape.rank());
    const Array sorted = map_lines(in, at, [=](const std::vector<double>& all) {
      std::vector<double> found;
      for (const int64_t place : order_of(all)) {
        found.push_back(indices ? static_cast<double>(place) : all[static_cast<size_t>(place)]);
      }
      return found;
    });
    return generate(replaced(in.shape, at, k), [&](const Index& i) { return sorted[i]; });
  };
  const bool ties = !x.elements.empty();
  table.push_back({
      .op = "topk",
      .variant = std::string(timed ? "timed " : "") + (indices ? "indices" : "values") + ", " +
                 std::to_string(k) + " on axis " + std::to_string(axis) + " of " + describe(x) +
                 (ties ? ", NaN and ties" : ""),
      .inputs = {x},
      .run =
          [=](const Tensors& t) {
            const TopK found = topk(t[0], k, axis);
            return indices ? found.indices : found.values;
          },
      .reference = [=](const Arrays& t) { return pick(t[0]); },
      .dtypes = std::move(dtypes),
      .results = indices ? std::vector<DType>{DType::int64} : std::vector<DType>{},
      .differentiable = !indices && !ties,
      .timed = timed,
  });
}

InputSpec distinct(const Shape& shape, Layout layout = contiguous) {
  return {.shape = shape, .layout = layout, .distinct = true};
}

}  // namespace

void add_topk(OpTable& table) {
  add_case(table, distinct({2048, 8192}), 32, 1, false, {DType::float32}, true);
  for (const bool indices : {false, true}) {
    add_case(table, distinct({7}), 3, 0, indices, kFloats);
    add_case(table, distinct({3, 65}), 65, 1, indices, kFloats);
    add_case(table, distinct({33, 5}), 4, 0, indices, kFloats);
    add_case(table, distinct({2, 9, 3}, heads), 2, -2, indices, kFloats);
    add_case(table, distinct({4, 6}, transposed), 5, 1, indices, kFloats);
    add_case(table, distinct({3, 300}, sliced), 31, -1, indices, kFloats);
    add_case(table, distinct({2, 5}), 0, 1, indices, kFloats);
    add_case(table, distinct({0, 5}), 2, 1, indices, kFloats);
    const double low = -kInfinity;
    const InputSpec hard{
        .shape = {3, 6},
        .elements = {1, kNaN, 5, 5, kNaN, 2, low, low, low, low, 0, low, 3, -0.0, -0.0, 0, 3, 3}};
    for (const int64_t k : {1, 2, 4, 6}) add_case(table, hard, k, 1, indices, kFloats);
    // Whole numbers: many ties.
    add_case(table, {{5, 300}}, 40, 1, indices, {DType::int32, DType::int64});
    // Lines longer than a block holds, and more elements than it sorts.
    add_case(table, distinct({2, 9001}), 33, 1, indices, {DType::float32});
    add_case(table, distinct({2, 2500}), 1500, 1, indices, kFloats);
  }
}

}  // namespace sash::testing
