#include <sash/ops/norm/softmax_modes.h>

#include "../cases.h"

namespace sash::testing {
namespace {

Array log_of(const Array& p) {
  return map(p, [](double x) { return std::log(x); });
}

// Softmax along the axes [first, first + count).
Array softmax_over(const Array& x, int first, int count) {
  return generate(x.shape, [&](const Index& at) {
    double total = 0;
    for_each_index(x.shape, [&](const Index& other) {
      bool together = true;
      for (int axis = 0; axis < x.shape.rank(); ++axis) {
        const bool summed = axis >= first && axis < first + count;
        together = together && (summed || other[axis] == at[axis]);
      }
      if (together) total += std::exp(x[other]);
    });
    return std::exp(x[at]) / total;
  });
}

void add_modes(OpTable& table) {
  using enum SoftmaxAlgorithm;
  const std::pair<const char*, SoftmaxAlgorithm> algorithms[] = {
      {"fast", fast}, {"accurate", accurate}, {"log", SoftmaxAlgorithm::log}};
  for (const auto& [word, algorithm] : algorithms) {
    for (const bool instance : {true, false}) {
      for (const Shape& shape : {Shape{2, 3, 2, 2}, Shape{3, 4}}) {
        table.push_back({
            .op = "softmax_over",
            .variant = std::string(word) + (instance ? " by instance, " : " by channel, ") +
                       to_string(shape),
            .inputs = {{shape}},
            .run =
                [a = algorithm, instance](const Tensors& x) {
                  return softmax_over(x[0], instance ? SoftmaxMode::instance : SoftmaxMode::channel,
                                      a);
                },
            .reference =
                [a = algorithm, instance](const Arrays& x) {
                  const Array p = softmax_over(x[0], 1, instance ? x[0].shape.rank() - 1 : 1);
                  return a == SoftmaxAlgorithm::log ? log_of(p) : p;
                },
            .half_gradient_rounds = 3,
            .half_gradient_scale = 1,
        });
      }
    }
  }
}

// inputs: x, begin, end, the latter two of one shape that broadcasts to x's rows.
Array masked_softmax_of(const Arrays& t) {
  const Array& x = t[0];
  Array y(x.shape);
  const int last = x.shape.rank() - 1;
  const auto n = x.shape[last];
  for_each_index(x.shape, [&](const Index& at) {
    const Index row = without(at, last);
    const auto begin = static_cast<int64_t>(t[1].broadcast(row));
    const auto end = static_cast<int64_t>(t[2].broadcast(row));
    if (at[last] < begin || at[last] >= end) return;
    double highest = -kInfinity, total = 0;
    for (int64_t j = std::max<int64_t>(begin, 0); j < std::min(end, n); ++j) {
      highest = std::max(highest, x[with(row, last, j)]);
    }
    for (int64_t j = std::max<int64_t>(begin, 0); j < std::min(end, n); ++j) {
      total += std::exp(x[with(row, last, j)] - highest);
    }
    if (highest > -kInfinity) y[at] = std::exp(x[at] - highest) / total;
  });
  return y;
}

void add_masked(OpTable& table) {
  struct Rows {
    InputSpec x;
    Shape bounds;
    std::vector<double> begin, end;
  };
  std::vector<Rows> all = {
      {{{4, 5}}, {4}, {0, 2, 3, -4}, {5, 4, 3, 2}},  // all, some, none, from before the first
      {{{2, 3, 4}}, {3}, {0, 1, 4}, {1, 9, 0}},
      {{{2, 3, 4}}, {2, 1}, {1, 0}, {3, 4}},
      {{{3, 5}, sliced}, {}, {1}, {4}},
      {{{5}}, {}, {2}, {3}},
      {{{0, 3}}, {}, {0}, {2}},
      {{{3, 0}}, {}, {0}, {2}},
      {{.shape = {2, 4}, .elements = {-kInfinity, -kInfinity, 1, 2, 1, -kInfinity, kNaN, 3}},
       {},
       {0},
       {2}},
  };
  for (const int64_t n : {65, 1030, 2100}) {
    const auto most = static_cast<double>(n);
    all.push_back({{{3, n}}, {3}, {0, 7, most - 1}, {most, most / 2, most}});
    for (double& end : all.back().end) end = std::floor(end);
  }
  using Function = Tensor (*)(const Tensor&, const Tensor&, const Tensor&);
  for (const auto& [kind, f] : {std::pair<const char*, Function>{"", masked_softmax},
                                {"composite, ", composite::masked_softmax}}) {
    for (const Rows& rows : all) {
      const InputSpec begin{.shape = rows.bounds, .dtype = DType::int32, .elements = rows.begin};
      const InputSpec end{.shape = rows.bounds, .dtype = DType::int32, .elements = rows.end};
      table.push_back({
          .op = "masked_softmax",
          .variant = kind + describe(rows.x) + " by " + to_string(rows.bounds) +
                     (rows.x.elements.empty() ? "" : ", hidden and infinite"),
          .inputs = {rows.x, begin, end},
          .run = [function = f](const Tensors& x) { return function(x[0], x[1], x[2]); },
          .reference = masked_softmax_of,
          .half_rounds = *kind ? 3.0 : 1,
          .half_gradient_rounds = *kind ? 8.0 : 2,
          .half_gradient_scale = 1,
          .differentiable = rows.x.elements.empty(),
      });
    }
  }
}

}  // namespace

void add_softmax_modes(OpTable& table) {
  add_modes(table);
  add_masked(table);
}

}  // namespace sash::testing
