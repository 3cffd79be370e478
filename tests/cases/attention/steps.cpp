#include <sash/ops/attention/exact/attention_step.h>
#include <sash/ops/attention/exact/linear_step.h>
#include <sash/tensor/factories.h>

#include "../cases.h"

/// The ops of a decoding step.
namespace sash::testing {
namespace {

InputSpec constant(const Shape& shape) {
  InputSpec spec{shape, contiguous, -1, 1};
  spec.requires_grad = false;
  return spec;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// x [rows, in], w [out, in], the norm's weight, a residual; gated or not.
void add_linear_step(OpTable& table, int64_t rows, int64_t in, int64_t out, bool gate) {
  const int64_t width = gate ? out / 2 : out;
  for (const bool plain : {false, true}) {
    const auto f = plain ? composite::linear_step : linear_step;
    table.push_back({
        .op = "linear_step",
        .variant = std::string(plain ? "composite, " : "") + std::to_string(rows) + " rows, " +
                   std::to_string(in) + " -> " + std::to_string(out) + (gate ? ", gated" : ""),
        .inputs = {constant({rows, in}), constant({out, in}), constant({in}),
                   constant({rows, width})},
        .run =
            [=](const Tensors& t) {
              LinearStepOptions options{.norm_weight = t[2], .norm = {.eps = 1e-3}};
              if (gate) options.gate = GluKind::swiglu;
              options.residual = t[3];
              return f(t[0], t[1], options);
            },
        .reference =
            [=](const Arrays& t) {
              const Array product = generate({rows, out}, [&](const Index& at) {
                double squares = 0, sum = 0;
                for (int64_t i = 0; i < in; ++i) {
                  const double x = t[0][{at[0], i}];
                  squares += x * x;
                  sum += x * t[2][{i}] * t[1][{at[1], i}];
                }
                return sum / std::sqrt(squares / static_cast<double>(in) + 1e-3);
              });
              return generate({rows, width}, [&](const Index& at) {
                const double a = product[at], rest = t[3][at];
                return gate ? a * sigmoid(a) * product[{at[0], at[1] + width}] + rest : a + rest;
              });
            },
        .half_rounds = 8,
        .differentiable = false,
    });
  }
}

// The token at position p of two key heads, with a ring of `recent` slots (0: none) behind `first`.
void add_attention_step(OpTable& table, int64_t heads, int64_t width, int64_t slots, int64_t p,
                        int64_t recent = 0, int64_t first = 0) {
  const int64_t slot = recent > 0 && p >= first ? first + (p - first) % recent : p;
  const int64_t used = std::min(p + 1, slots);
  CausalReach reach{.first = first};
  if (recent > 0) reach.recent = recent;
  for (const bool plain : {false, true}) {
    const auto f = plain ? composite::attention_step : attention_step;
    table.push_back({
        .op = "attention_step",
        .variant = std::string(plain ? "composite, " : "") + std::to_string(heads) + " heads of " +
                   std::to_string(width) + ", position " + std::to_string(p) + " of " +
                   std::to_string(slots) + " slots",
        .inputs = {constant({1, heads, 1, width}), constant({1, 2, 1, width}),
                   constant({1, 2, 1, width}), constant({1, 2, slots, width}),
                   constant({1, 2, slots, width})},
        .run = [=](const Tensors& t) -> Tensors {
          const Tensor keys = t[3].clone(), values = t[4].clone();
          const Tensor at = full({1}, p, {.dtype = DType::int64, .device = t[0].device()});
          const Tensor out = f(t[0], t[1], t[2], keys, values, at, {.reach = reach});
          return {out, keys, values};
        },
        .reference = [=](const Arrays& t) -> Arrays {
          const auto stored = [&](const Array& cache, const Array& own) {
            return generate(cache.shape, [&](const Index& at) {
              return at[2] == slot ? own[{0, at[1], 0, at[3]}] : cache[at];
            });
          };
          const Array keys = stored(t[3], t[1]), values = stored(t[4], t[2]);
          const Array out = generate({1, heads, 1, width}, [&](const Index& at) {
            const int64_t h = at[1] / (heads / 2);
            std::vector<double> scores;
            for (int64_t j = 0; j < used; ++j) {
              double dot = 0;
              for (int64_t d = 0; d < width; ++d)
                dot += t[0][{0, at[1], 0, d}] * keys[{0, h, j, d}];
              scores.push_back(dot / std::sqrt(static_cast<double>(width)));
            }
            const std::vector<double> weights = softmax_line(scores);
            double y = 0;
            for (int64_t j = 0; j < used; ++j) {
              y += weights[static_cast<size_t>(j)] * values[{0, h, j, at[3]}];
            }
            return y;
          });
          return {out, keys, values};
        },
        .half_rounds = 8,
        .differentiable = false,
    });
  }
}

}  // namespace

void add_steps(OpTable& table) {
  for (const bool gate : {false, true}) {
    add_linear_step(table, 1, 16, 6, gate);
    add_linear_step(table, 4, 24, 130, gate);
    add_linear_step(table, 3, 264, 34, gate);
    add_linear_step(table, 5, 7, 10, gate);
  }
  add_attention_step(table, 2, 8, 5, 0);
  add_attention_step(table, 4, 16, 9, 8);
  add_attention_step(table, 10, 48, 40, 33);
  add_attention_step(table, 6, 64, 7, 25, 5, 2);
  add_attention_step(table, 2, 5, 4, 3);
}

}  // namespace sash::testing
