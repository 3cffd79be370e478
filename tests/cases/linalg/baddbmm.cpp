#include <sash/ops/linalg/baddbmm.h>

#include "../cases.h"

namespace sash::testing {
namespace {

std::string flag_names(const BaddbmmOptions& o) {
  std::string text;
  text += o.transpose_a ? "A' " : "A ";
  text += o.transpose_b ? "B'" : "B";
  if (o.transpose_product) text = "(" + text + ")'";
  return text;
}

Array expected(const Arrays& x, const BaddbmmOptions& o, bool has_addend) {
  const Array& a = x[has_addend ? 1 : 0];
  const Array& b = x[has_addend ? 2 : 1];
  Array y =
      matmul(o.transpose_a ? transpose(a, -2, -1) : a, o.transpose_b ? transpose(b, -2, -1) : b);
  if (o.transpose_product) y = transpose(y, -2, -1);
  for (double& value : y.values) value *= o.alpha;
  if (!has_addend || o.beta == 0) return y;
  return zip(y, x[0], [&](double product, double c) { return product + o.beta * c; });
}

struct Spec {
  Shape batch_a, batch_b, batch;
  int64_t m, n, k;
  Layout layout = contiguous;
};

Shape joined(Shape batch, int64_t rows, int64_t cols, bool transposed) {
  batch.push_back(transposed ? cols : rows);
  batch.push_back(transposed ? rows : cols);
  return batch;
}

void add_cases_of(OpTable& table, const Spec& s, const BaddbmmOptions& o) {
  const InputSpec a{joined(s.batch_a, s.m, s.k, o.transpose_a), s.layout};
  const InputSpec b{joined(s.batch_b, s.k, s.n, o.transpose_b), s.layout};
  const InputSpec c{joined(s.batch, s.m, s.n, o.transpose_product)};
  const std::string variant = flag_names(o) + " beta " + std::to_string(o.beta).substr(0, 4) +
                              " of " + describe(a) + " and " + describe(b);
  const auto reference = [o](const Arrays& x) { return expected(x, o, true); };
  table.push_back({
      .op = "baddbmm",
      .variant = variant,
      .inputs = {c, a, b},
      .run = [o](const Tensors& x) { return baddbmm(x[0], x[1], x[2], o); },
      .reference = reference,
      .tolerance32 = 1e-4,
      .half_rounds = 2,
      .half_gradient_rounds = 3,
      .half_gradient_scale = 4,
  });
  table.push_back({
      .op = "baddbmm_",
      .variant = variant,
      .inputs = {c, a, b},
      .run = [o](const Tensors& x) { return baddbmm_(x[0].clone(), x[1], x[2], o); },
      .reference = reference,
      .tolerance32 = 1e-4,
      .half_rounds = 2,
      .half_gradient_rounds = 3,
      .half_gradient_scale = 4,
  });
}

}  // namespace

void add_baddbmm(OpTable& table) {
  for (int i = 0; i < 8; ++i) {
    const BaddbmmOptions o{.alpha = 0.5,
                           .beta = -1.5,
                           .transpose_a = (i & 1) != 0,
                           .transpose_b = (i & 2) != 0,
                           .transpose_product = (i & 4) != 0};
    add_cases_of(table, {{2}, {2}, {2}, 3, 2, 4}, o);
    add_cases_of(table, {{}, {}, {}, 65, 33, 17}, o);
    add_cases_of(table, {{2, 1}, {3}, {2, 3}, 2, 3, 2, padded}, o);
  }
  add_cases_of(table, {{3}, {3}, {3}, 4, 5, 2}, {.beta = 0, .transpose_product = true});
  add_cases_of(table, {{2}, {2}, {2}, 3, 4, 0}, {.beta = 2, .transpose_a = true});
  add_cases_of(table, {{2}, {2}, {2}, 0, 4, 3}, {.beta = 2, .transpose_product = true});
  table.push_back({
      .op = "baddbmm",
      .variant = "a broadcast row, as a bias",
      .inputs = {{{5}}, {{2, 3, 4}}, {{4, 5}}},
      .run = [](const Tensors& x) { return baddbmm(x[0], x[1], x[2]); },
      .reference = [](const Arrays& x) { return expected(x, {}, true); },
      .half_rounds = 2,
      .half_gradient_rounds = 3,
      .half_gradient_scale = 4,
  });
  table.push_back({
      .op = "baddbmm",
      .variant = "without an addend",
      .inputs = {{{2, 3, 4}}, {{2, 4, 5}}},
      .run = [](const Tensors& x) { return baddbmm({}, x[0], x[1], {.alpha = 3, .beta = 0}); },
      .reference = [](const Arrays& x) { return expected(x, {.alpha = 3, .beta = 0}, false); },
      .half_gradient_rounds = 2,
  });
}

}  // namespace sash::testing
