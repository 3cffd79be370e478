#include <sash/ops/elementwise/glu.h>

#include "../cases.h"

namespace sash::testing {
namespace {

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

double gated(GluKind kind, double a, double b) {
  switch (kind) {
    case GluKind::swiglu:
      return a * sigmoid_of(a) * b;
    case GluKind::geglu:
      return a * (1 + std::erf(a / std::sqrt(2.0))) / 2 * b;
    case GluKind::geglu_tanh: {
      const double pi = 3.14159265358979323846;
      return a * (1 + std::tanh(std::sqrt(2 / pi) * (a + 0.044715 * a * a * a))) / 2 * b;
    }
    case GluKind::clamped_swiglu:
      break;
  }
  const double c = a > 7 ? 7 : a, d = b > 7 ? 7 : b < -7 ? -7 : b;
  return c * sigmoid_of(1.702 * c) * (d + 1);
}

Array glu_of(const Array& x, GluKind kind) {
  Shape shape = x.shape;
  const int axis = shape.rank() - 1;
  shape[axis] /= 2;
  return generate(shape, [&](const Index& at) {
    Index value = at;
    value[axis] += shape[axis];
    return gated(kind, x[at], x[value]);
  });
}

using Function = Tensor (*)(const Tensor&, GluKind);

void add_cases(OpTable& table, const std::string& name, Function f, GluKind kind, double limit) {
  const bool composite = name[0] == 'c';
  const auto add = [&](InputSpec x) {
    x.low = -limit;
    x.high = limit;
    if (kind == GluKind::clamped_swiglu) x.kinks = {-7, 7};
    table.push_back({
        .op = "glu",
        .variant = name + describe(x),
        .inputs = {x},
        .run = [=](const Tensors& t) { return f(t[0], kind); },
        .reference = [=](const Arrays& t) { return glu_of(t[0], kind); },
        .half_rounds = composite ? 6.0 : 1,
        .half_gradient_rounds = composite ? 8.0 : 1,
        .half_gradient_scale = composite ? limit : 0,
    });
  };
  add({{2}});
  add({{3, 10}});
  add({{2, 3, 8}});
  add({{5, 1030}});
  add({{17, 128}});
  add({{4, 6}, transposed});
  add({{2, 14}, sliced});
  add({{3, 4}, expanded});
  add({{0, 6}});
  add({{3, 0}});
  table.push_back({
      .op = "glu",
      .variant = name + "extremes",
      .inputs = {{.shape = {5, 2}, .elements = {kNaN, 1, 1, kNaN, 90, 1, -90, 1, 0, 100}}},
      .run = [=](const Tensors& t) { return f(t[0], kind); },
      .reference = [=](const Arrays& t) { return glu_of(t[0], kind); },
      .differentiable = false,
  });
}

}  // namespace

void add_glu(OpTable& table) {
  using enum GluKind;
  for (const bool plain : {false, true}) {
    const std::string prefix = plain ? "composite, " : "";
    const Function f = plain ? composite::glu : glu;
    add_cases(table, prefix + "swiglu, ", f, swiglu, 4);
    add_cases(table, prefix + "geglu, ", f, geglu, 4);
    add_cases(table, prefix + "geglu_tanh, ", f, geglu_tanh, 4);
    add_cases(table, prefix + "clamped_swiglu, ", f, clamped_swiglu, 9);
  }
  table.push_back({
      .op = "glu",
      .variant = "timed, swiglu, [1024, 2048]",
      .inputs = {{{1024, 2048}}},
      .run = [](const Tensors& t) { return glu(t[0]); },
      .reference = [](const Arrays& t) { return glu_of(t[0], swiglu); },
      .dtypes = {DType::float32},
      .timed = true,
      .operations = 8.0 * 1024 * 1024,
      .bytes = 12.0 * 1024 * 1024,
  });
}

}  // namespace sash::testing
