#include <sash/ops/norm/batch_norm.h>

#include "../cases.h"

namespace sash::testing {
namespace {

/// Elements of one channel of x [N, C, ...].
std::vector<double> channel(const Array& x, int64_t c) {
  std::vector<double> found;
  for_each_index(x.shape, [&](const Index& at) {
    if (at[1] == c) found.push_back(x[at]);
  });
  return found;
}

struct Moments {
  double mean = 0, biased = 0, unbiased = 0;
};

Moments moments(const std::vector<double>& x) {
  Moments m;
  for (const double value : x) m.mean += value / static_cast<double>(x.size());
  for (const double value : x) m.biased += (value - m.mean) * (value - m.mean);
  m.unbiased = m.biased / static_cast<double>(x.size() - 1);
  m.biased /= static_cast<double>(x.size());
  return m;
}

/// Inputs are x, running mean and variance, and with `affine` weight and bias.
void add_case(OpTable& table, const InputSpec& x, bool training, bool affine, bool statistics) {
  const Shape channels{x.shape[1]};
  std::vector<InputSpec> inputs{x,
                                {.shape = channels, .requires_grad = false},
                                {.shape = channels, .low = 0.5, .requires_grad = false}};
  if (affine) inputs.push_back({channels}), inputs.push_back({channels});
  const BatchNormOptions options{.training = training, .momentum = 0.25, .eps = 1e-3};
  table.push_back({
      .op = "batch_norm",
      .variant = std::string(training ? "training" : "evaluation") +
                 (affine ? ", affine, " : ", ") + (statistics ? "statistics of " : "") +
                 describe(x),
      .inputs = inputs,
      // The running statistics are written in place: to copies.
      .run = [=](const Tensors& t) -> Tensors {
        const Tensor mean = t[1].clone(), var = t[2].clone();
        const Tensor y = batch_norm(t[0], mean, var, affine ? t[3] : Tensor(),
                                    affine ? t[4] : Tensor(), options);
        return statistics ? Tensors{mean, var} : Tensors{y};
      },
      .reference = [=](const Arrays& t) -> Arrays {
        Array y = t[0], mean = t[1], var = t[2];
        for (int64_t c = 0; c < channels[0]; ++c) {
          const auto at = static_cast<size_t>(c);
          double centre = mean.values[at], spread = var.values[at];
          if (training) {
            const Moments m = moments(channel(t[0], c));
            mean.values[at] += 0.25 * (m.mean - mean.values[at]);
            var.values[at] += 0.25 * (m.unbiased - var.values[at]);
            centre = m.mean, spread = m.biased;
          }
          const double scale = (affine ? t[3].values[at] : 1) / std::sqrt(spread + 1e-3);
          const double shift = affine ? t[4].values[at] : 0;
          for_each_index(y.shape, [&](const Index& i) {
            if (i[1] == c) y[i] = (t[0][i] - centre) * scale + shift;
          });
        }
        return statistics ? Arrays{mean, var} : Arrays{y};
      },
      .tolerance64 = 1e-11,
      .half_rounds = 3,
      .half_gradient_rounds = 3,
      .half_gradient_scale = 4,
      .differentiable = !statistics,
  });
}

}  // namespace

void add_batch_norm(OpTable& table) {
  for (const bool training : {false, true}) {
    for (const bool affine : {false, true}) {
      for (const bool statistics : {false, true}) {
        add_case(table, {{5, 3}}, training, affine, statistics);
        add_case(table, {{2, 3, 4}}, training, affine, statistics);
        add_case(table, {{2, 3, 3, 2}, heads}, training, affine, statistics);
      }
    }
    add_case(table, {{3, 65, 5, 7}}, training, true, false);
    add_case(table, {{4, 6}, transposed}, training, true, false);
    add_case(table, {{2, 3, 4}, sliced}, training, true, false);
  }
}

}  // namespace sash::testing
