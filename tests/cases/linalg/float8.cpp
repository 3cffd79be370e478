#include <cmath>

#include <sash/ops/linalg/linear_float8.h>

#include "../../support/float8.h"
#include "../cases.h"

/// Products in FP8. They take no float64: such runs are float32's.
namespace sash::testing {
namespace {

constexpr auto kE4m3 = kernels::Float8::e4m3;

constexpr double kFastSums = 1e-2;  // error of the tensor cores' fast accumulation

InputSpec constant(const Shape& shape, Layout layout = contiguous) {
  InputSpec spec{shape, layout};
  spec.requires_grad = false;
  return spec;
}

/// A run of float64 in float32.
template <class F>
auto in_float(const F& f) {
  return [f](const Tensors& t) {
    if (t[0].dtype() != DType::float64) return f(t);
    Tensors narrow;
    for (const Tensor& x : t) narrow.push_back(x.to(DType::float32));
    return f(narrow).to(DType::float64);
  };
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
      .inputs = {x, weight, constant({weight.shape[0]})},
      .run = in_float([](const Tensors& t) { return linear_float8(t[0], t[1], t[2]); }),
      .reference =
          [fits](const Arrays& t) {
            return zip(linear_of(t[0], t[1], fits), t[2], [](double a, double b) { return a + b; });
          },
      .dtypes = {DType::float32},
      .tolerance32 = kFastSums,
      .differentiable = false,
  });
}

// A cast after glu may round a number the other way, by an eighth.
void add_mlp(OpTable& table, bool fused) {
  table.push_back({
      .op = "glu_mlp_float8",
      .variant = fused ? "fused" : "composite",
      .inputs = {constant({32, 48}), constant({64, 48}), constant({16, 32})},
      .run = in_float([fused](const Tensors& t) {
        const auto mlp = fused ? glu_mlp_float8 : composite::glu_mlp_float8;
        return mlp(t[0], t[1], t[2], GluKind::swiglu);
      }),
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
      .tolerance32 = 0.1,
      .differentiable = false,
  });
}

}  // namespace

void add_float8(OpTable& table) {
  add_case(table, constant({32, 64}), constant({48, 64}), true);
  add_case(table, constant({2, 72, 80}), constant({16, 80}, sliced), true);
  add_case(table, constant({160, 208}, transposed), constant({80, 208}, transposed), true);
  add_case(table, constant({3, 5, 16}), constant({32, 16}), false);
  add_case(table, constant({32, 24}), constant({32, 24}), false);
  add_mlp(table, true);
  add_mlp(table, false);
}

}  // namespace sash::testing
