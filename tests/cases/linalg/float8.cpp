#include <cmath>

#include <sash/ops/linalg/linear_float8.h>

#include "../../support/float8.h"
#include "../cases.h"

/// Products in FP8. Operands are float32 in every run, because casts round them differently in
/// other dtypes.
namespace sash::testing {
namespace {

constexpr auto kE4m3 = kernels::Float8::e4m3;

InputSpec wide(const Shape& shape, Layout layout = contiguous) {
  InputSpec spec{shape, layout};
  spec.dtype = DType::float32;
  spec.requires_grad = false;
  return spec;
}

Array cast(const Array& x) {
  Array y = x;
  y.values = quantised(x.values, kE4m3);
  return y;
}

// x W'; cast only if all extents are multiples of 16.
Array linear_of(const Array& x, const Array& weight, bool fits) {
  return fits ? matmul(cast(x), transpose(cast(weight), 0, 1)) : matmul(x, transpose(weight, 0, 1));
}

void add_case(OpTable& table, const InputSpec& x, const InputSpec& weight, bool fits) {
  table.push_back({
      .op = "linear_float8",
      .variant = describe(x) + " and " + describe(weight),
      .inputs = {x, weight, wide({weight.shape[0]})},
      .run = [](const Tensors& t) { return linear_float8(t[0], t[1], t[2]); },
      .reference =
          [fits](const Arrays& t) {
            return zip(linear_of(t[0], t[1], fits), t[2], [](double a, double b) { return a + b; });
          },
      .dtypes = {DType::float32},
      .results = {DType::float32},
      .tolerance32 = 2e-3,  // of the tensor cores' fast sums
      .differentiable = false,
  });
}

// A cast after glu may round a number the other way, by an eighth.
void add_mlp(OpTable& table, bool fused) {
  table.push_back({
      .op = "glu_mlp_float8",
      .variant = fused ? "fused" : "composite",
      .inputs = {wide({32, 48}), wide({64, 48}), wide({16, 32})},
      .run =
          [fused](const Tensors& t) {
            return (fused ? glu_mlp_float8 : composite::glu_mlp_float8)(t[0], t[1], t[2],
                                                                        GluKind::swiglu);
          },
      .reference =
          [](const Arrays& t) {
            const Array z = linear_of(t[0], t[1], true);
            const Array hidden = generate({32, 32}, [&](I at) {
              const double a = z[at], b = z[{at[0], at[1] + 32}];
              return a / (1 + std::exp(-a)) * b;
            });
            return linear_of(hidden, t[2], true);
          },
      .dtypes = {DType::float32},
      .results = {DType::float32},
      .tolerance32 = 0.05,
      .differentiable = false,
  });
}

}  // namespace

void add_float8(OpTable& table) {
  add_case(table, wide({32, 64}), wide({48, 64}), true);
  add_case(table, wide({2, 72, 80}), wide({16, 80}, sliced), true);
  add_case(table, wide({160, 208}, transposed), wide({80, 208}, transposed), true);
  add_case(table, wide({3, 5, 16}), wide({32, 16}), false);
  add_case(table, wide({32, 24}), wide({32, 24}), false);
  add_mlp(table, true);
  add_mlp(table, false);
}

}  // namespace sash::testing
