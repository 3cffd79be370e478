#include <sash/ops/index/sort.h>

#include <algorithm>
#include <numeric>

#include "cases.h"

namespace sash::testing {
namespace {

// Places of the elements in descending order, NaN first, or in ascending order; ties by place.
std::vector<int64_t> order_of(const std::vector<double>& x, bool descending = true) {
  std::vector<int64_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double p = x[static_cast<size_t>(a)], q = x[static_cast<size_t>(b)];
    if (std::isnan(p) != std::isnan(q)) return std::isnan(descending ? p : q);
    return descending ? p > q : p < q;
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
            const Chosen found = topk(t[0], k, axis);
            return indices ? found.indices : found.values;
          },
      .reference = [=](const Arrays& t) { return pick(t[0]); },
      .dtypes = std::move(dtypes),
      .results = indices ? std::vector<DType>{DType::int64} : std::vector<DType>{},
      .differentiable = !indices && !ties,
      .timed = timed,
  });
}

// `sort`, `argsort`, and topk of the smallest.
void add_sort_case(OpTable& table, const std::string& op, const InputSpec& x, int64_t axis,
                   bool descending, std::vector<DType> dtypes = kFloats) {
  const bool places = op == "argsort";
  const bool ties = !x.elements.empty();
  const int64_t taken = op == "topk" ? x.shape[positive(axis, x.shape.rank())] / 2 : -1;
  table.push_back({
      .op = op,
      .variant = std::string(descending ? "descending" : "ascending") + ", axis " +
                 std::to_string(axis) + " of " + describe(x) + (ties ? ", NaN and ties" : ""),
      .inputs = {x},
      .run = [=](const Tensors& t) -> Tensor {
        if (places) return argsort(t[0], axis, descending);
        return (taken < 0 ? sort(t[0], axis, descending) : topk(t[0], taken, axis, false)).values;
      },
      .reference =
          [=](const Arrays& t) {
            const int at = positive(axis, t[0].shape.rank());
            const Array sorted = map_lines(t[0], at, [=](const std::vector<double>& all) {
              std::vector<double> found;
              for (const int64_t place : order_of(all, descending)) {
                found.push_back(places ? double(place) : all[static_cast<size_t>(place)]);
              }
              return found;
            });
            if (taken < 0) return sorted;
            return generate(replaced(t[0].shape, at, taken),
                            [&](const Index& i) { return sorted[i]; });
          },
      .dtypes = std::move(dtypes),
      .results = places ? std::vector<DType>{DType::int64} : std::vector<DType>{},
      .differentiable = !places && !ties,
  });
}

// `max` and `min` along an axis; with ties, the gradient goes to the first.
void add_extremum_case(OpTable& table, bool greatest, bool indices, const InputSpec& x,
                       int64_t axis, bool keepdim, std::vector<DType> dtypes = kFloats) {
  const bool ties = !x.elements.empty();
  table.push_back({
      .op = greatest ? "max" : "min",
      .variant = std::string(indices ? "indices" : "values") + ", axis " + std::to_string(axis) +
                 " of " + describe(x) + (keepdim ? ", kept" : "") + (ties ? ", NaN and ties" : ""),
      .inputs = {x},
      .run =
          [=](const Tensors& t) {
            const Chosen found = greatest ? max(t[0], axis, keepdim) : min(t[0], axis, keepdim);
            return indices ? found.indices : found.values;
          },
      .reference =
          [=](const Arrays& t) {
            const int at = positive(axis, t[0].shape.rank());
            const Array kept = map_lines(t[0], at, [=](const std::vector<double>& all) {
              auto first = static_cast<size_t>(order_of(all, greatest)[0]);
              for (size_t i = all.size(); !greatest && i-- > 0;) {
                if (std::isnan(all[i])) first = i;
              }
              return std::vector<double>(all.size(), indices ? double(first) : all[first]);
            });
            Array y =
                generate(replaced(t[0].shape, at, 1), [&](const Index& i) { return kept[i]; });
            if (!keepdim) y.shape.erase(at);
            return y;
          },
      .dtypes = std::move(dtypes),
      .results = indices ? std::vector<DType>{DType::int64} : std::vector<DType>{},
      .differentiable = !indices && !ties,
  });
}

InputSpec distinct(const Shape& shape, Layout layout = contiguous) {
  return {.shape = shape, .layout = layout, .distinct = true};
}

void add_sorts(OpTable& table) {
  const double low = -kInfinity;
  const InputSpec hard{
      .shape = {3, 6},
      .elements = {1, kNaN, 5, 5, kNaN, 2, low, low, low, low, 0, low, 3, -0.0, -0.0, 0, 3, 3}};
  for (const std::string op : {"sort", "argsort", "topk"}) {
    for (const bool descending : {false, true}) {
      if (op == "topk" && descending) continue;
      add_sort_case(table, op, distinct({7}), 0, descending);
      add_sort_case(table, op, distinct({3, 65}), -1, descending);
      add_sort_case(table, op, distinct({33, 5}), 0, descending);
      add_sort_case(table, op, distinct({2, 9, 3}, heads), 1, descending);
      add_sort_case(table, op, distinct({4, 6}, sliced), 1, descending);
      add_sort_case(table, op, distinct({0, 5}), 1, descending);
      add_sort_case(table, op, hard, 1, descending);
      // Whole numbers: many ties. Lines of many lengths, and of negative numbers.
      add_sort_case(table, op, {{5, 700}, contiguous, -40, 40}, 1, descending,
                    {DType::int32, DType::int64});
      add_sort_case(table, op, distinct({2, 2500}), 1, descending);
    }
  }
  for (const bool greatest : {false, true}) {
    for (const bool indices : {false, true}) {
      add_extremum_case(table, greatest, indices, distinct({6}), 0, false);
      add_extremum_case(table, greatest, indices, distinct({3, 65}), -1, true);
      add_extremum_case(table, greatest, indices, distinct({2, 9, 3}, heads), 1, false);
      add_extremum_case(table, greatest, indices, hard, 1, false);
      add_extremum_case(table, greatest, indices, {{4, 30}, transposed, -9, 9}, 0, false,
                        {DType::int32, DType::int64});
    }
    table.push_back({
        .op = greatest ? "max" : "min",
        .variant = "of all",
        .inputs = {distinct({3, 5})},
        .run = [=](const Tensors& t) { return greatest ? max(t[0]) : min(t[0]); },
        .reference =
            [=](const Arrays& t) {
              const auto& v = t[0].values;
              return Array(Shape{}, greatest ? *std::max_element(v.begin(), v.end())
                                             : *std::min_element(v.begin(), v.end()));
            },
    });
  }
}

}  // namespace

void add_topk(OpTable& table) {
  add_sorts(table);
  add_case(table, distinct({2048, 8192}), 32, 1, false, {DType::float32}, true);
  for (const bool indices : {false, true}) {
    add_case(table, distinct({7}), 3, 0, indices, kFloats);
    add_case(table, distinct({3, 65}), 65, 1, indices, kFloats);
    add_case(table, distinct({33, 5}), 4, 0, indices, kFloats);
    add_case(table, distinct({2, 9, 3}, heads), 2, -2, indices, kFloats);
    add_case(table, distinct({4, 6}, transposed), 5, 1, indices, kFloats);
    add_case(table, distinct({3, 300}, sliced), 31, -1, indices, kFloats);
    add_case(table, distinct({300, 3}), 31, 0, indices, kFloats);
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
