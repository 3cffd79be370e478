#include <sash/ops/update/optimizer.h>

#include <algorithm>

#include <sash/ops/kernels/update_rules.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "../support/op_inputs.h"
#include "cases.h"

namespace sash::testing {
namespace {

double norm_of(const Arrays& x) {
  double sum = 0;
  for (const Array& part : x) {
    for (const double value : part.values) sum += value * value;
  }
  return std::sqrt(sum);
}

Arrays map_all(const Arrays& x, const std::function<double(double)>& f) {
  Arrays y;
  for (const Array& part : x) y.push_back(map(part, f));
  return y;
}

Tensors clones(const Tensors& x) {
  const NoGradGuard no_grad;
  Tensors copies;
  for (const Tensor& t : x) copies.push_back(t.clone());
  return copies;
}

const std::vector<InputSpec> kGradients{{{3, 5}}, {{65, 130}}, {{0}}, {{}}};

void add_row(OpTable& table, const std::string& name, const std::string& variant,
             std::vector<InputSpec> inputs, std::function<Several<Tensor>(const Tensors&)> run,
             std::function<Several<Array>(const Arrays&)> reference, bool float64_result = false) {
  table.push_back({
      .op = name,
      .variant = variant,
      .inputs = std::move(inputs),
      .run = std::move(run),
      .reference = std::move(reference),
      .results = float64_result ? std::vector<DType>{DType::float64} : std::vector<DType>{},
      .differentiable = false,
  });
}

void add_norms(OpTable& table) {
  add_row(
      table, "global_norm", "whole", kGradients, [](const Tensors& x) { return global_norm(x); },
      [](const Arrays& x) { return Array({}, norm_of(x)); }, true);
  for (const double limit : {0.5, 1e6}) {
    const std::string variant = limit < 1 ? "above the limit" : "below the limit";
    add_row(
        table, "clip_by_norm_", variant, kGradients,
        [limit](const Tensors& x) {
          Tensors y = clones(x);
          clip_by_norm_(y, global_norm(y), limit);
          return y;
        },
        [limit](const Arrays& x) {
          const double factor = std::min(limit / (norm_of(x) + 1e-6), 1.0);
          return map_all(x, [=](double v) { return v * factor; });
        });
  }
  add_row(
      table, "clip_by_value_", "whole", kGradients,
      [](const Tensors& x) {
        Tensors y = clones(x);
        clip_by_value_(y, 0.75);
        return y;
      },
      [](const Arrays& x) {
        return map_all(x, [](double v) { return std::clamp(v, -0.75, 0.75); });
      });
}

constexpr double kRate = 0.01, kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-8, kDecay = 0.1;
constexpr int64_t kStep = 3;  // steps taken before

Tensor rate(Device device) { return full({}, kRate, {.dtype = DType::float64, .device = device}); }
Tensor steps_taken(int64_t count, Device device) {
  return full({}, count, {.dtype = DType::int64, .device = device});
}

// How gradients are scaled: with the norm 4, by 1 / (4 + 1e-6), or by 1 / (4 + 2e-6) after a loss
// scale of 2.
enum class Scaled { no, clipped, after_loss_scale };

double factor_of(Scaled scaled) {
  if (scaled == Scaled::no) return 1;
  return scaled == Scaled::clipped ? 1 / (4 + 1e-6) : 1 / (4 + 2e-6);
}

struct ScaleNumbers {
  ScaleNumbers(Scaled scaled, Device device)
      : norm(full({}, 4, {.dtype = DType::float64, .device = device})),
        loss_scale(full({}, 2, {.dtype = DType::float64, .device = device})) {
    if (scaled == Scaled::no) return;
    scale.norm = norm.data<const double>();
    scale.max_norm = 1;
    if (scaled == Scaled::after_loss_scale) scale.loss_scale = loss_scale.data<const double>();
  }
  Tensor norm, loss_scale;
  kernels::GradientScale scale;
};

// What is 0 everywhere if `parameter` is `master` rounded.
Tensor rounding_error(const Tensor& parameter, const Tensor& master) {
  return parameter.to(DType::float32) - master.to(parameter.dtype()).to(DType::float32);
}

// inputs: parameter, gradient, first and second moment, perhaps a master; results: the same without
// the gradient, for the parameter and its master the master and how the parameter differs from it.
Tensors adam(const Tensors& x, bool decoupled, Scaled scaled = Scaled::no) {
  const NoGradGuard no_grad;
  const Tensors y = clones(x);
  const Device device = x[0].device();
  const Tensor lr = rate(device), step = steps_taken(kStep, device);
  const ScaleNumbers numbers(scaled, device);
  const bool master = y.size() > 4;
  const kernels::RuleTensors tensors{x[0].dtype(),
                                     x[0].numel(),
                                     y[0].tensor_view().data,
                                     y[1].tensor_view().data,
                                     {y[2].tensor_view().data, y[3].tensor_view().data},
                                     step.data<int64_t>(),
                                     master ? y[4].data<float>() : nullptr};
  KernelContext context = kernel_context(device);
  kernels::adam_step(
      context, {&tensors, 1},
      {lr.data<const double>(), kBeta1, kBeta2, kEps, kDecay, decoupled, numbers.scale});
  if (master) return {y[4], y[2], y[3], rounding_error(y[0], y[4])};
  return {y[0], y[2], y[3]};
}

Arrays adam_of(const Arrays& x, bool decoupled, Scaled scaled = Scaled::no) {
  Array p = x.size() > 4 ? x[4] : x[0], m = x[2], v = x[3];
  const double t = kStep + 1;
  for (size_t i = 0; i < p.values.size(); ++i) {
    double g = x[1].values[i] * factor_of(scaled);
    if (decoupled) {
      p.values[i] *= 1 - kRate * kDecay;
    } else {
      g += kDecay * p.values[i];
    }
    m.values[i] = kBeta1 * m.values[i] + (1 - kBeta1) * g;
    v.values[i] = kBeta2 * v.values[i] + (1 - kBeta2) * g * g;
    const double mean = m.values[i] / (1 - std::pow(kBeta1, t));
    const double square = v.values[i] / (1 - std::pow(kBeta2, t));
    p.values[i] -= kRate * mean / (std::sqrt(square) + kEps);
  }
  if (x.size() > 4) return {p, m, v, map(p, [](double) { return 0.0; })};
  return {p, m, v};
}

// inputs: parameter, gradient, momentum buffer, perhaps a master; results: as of Adam.
Tensors sgd(const Tensors& x, int64_t steps, bool nesterov, Scaled scaled = Scaled::no) {
  const NoGradGuard no_grad;
  const Tensors y = clones(x);
  const Device device = x[0].device();
  const Tensor lr = rate(device), step = steps_taken(steps, device);
  const ScaleNumbers numbers(scaled, device);
  const bool master = y.size() > 3;
  const kernels::RuleTensors tensors{x[0].dtype(),
                                     x[0].numel(),
                                     y[0].tensor_view().data,
                                     y[1].tensor_view().data,
                                     {y[2].tensor_view().data},
                                     step.data<int64_t>(),
                                     master ? y[3].data<float>() : nullptr};
  KernelContext context = kernel_context(device);
  kernels::sgd_step(context, {&tensors, 1},
                    {lr.data<const double>(), 0.9, 0, kDecay, nesterov, numbers.scale});
  if (master) return {y[3], y[2], rounding_error(y[0], y[3])};
  return {y[0], y[2]};
}

Arrays sgd_of(const Arrays& x, int64_t steps, bool nesterov, Scaled scaled = Scaled::no) {
  Array p = x.size() > 3 ? x[3] : x[0], b = x[2];
  for (size_t i = 0; i < p.values.size(); ++i) {
    const double g = x[1].values[i] * factor_of(scaled) + kDecay * p.values[i];
    b.values[i] = steps == 0 ? g : 0.9 * b.values[i] + g;
    p.values[i] -= kRate * (nesterov ? g + 0.9 * b.values[i] : b.values[i]);
  }
  if (x.size() > 3) return {p, b, map(p, [](double) { return 0.0; })};
  return {p, b};
}

void add_steps(OpTable& table, const Shape& shape) {
  const InputSpec any{shape}, positive{.shape = shape, .low = 0.1, .high = 2};
  for (const bool flag : {false, true}) {
    add_row(
        table, "adam_step", (flag ? "decoupled, " : "") + to_string(shape),
        {any, any, any, positive}, [flag](const Tensors& x) { return adam(x, flag); },
        [flag](const Arrays& x) { return adam_of(x, flag); });
    for (const int64_t steps : {0, 2}) {
      add_row(
          table, "sgd_step",
          (flag ? "nesterov, " : "") + std::to_string(steps) + " steps before, " + to_string(shape),
          {any, any, any}, [=](const Tensors& x) { return sgd(x, steps, flag); },
          [=](const Arrays& x) { return sgd_of(x, steps, flag); });
    }
  }
}

void add_scaled_steps(OpTable& table, const Shape& shape) {
  const InputSpec any{shape}, positive{.shape = shape, .low = 0.1, .high = 2};
  for (const Scaled scaled : {Scaled::clipped, Scaled::after_loss_scale}) {
    const std::string how = scaled == Scaled::clipped ? "clipped" : "clipped after a loss scale";
    add_row(
        table, "adam_step", how, {any, any, any, positive},
        [=](const Tensors& x) { return adam(x, false, scaled); },
        [=](const Arrays& x) { return adam_of(x, false, scaled); });
    add_row(
        table, "sgd_step", how, {any, any, any},
        [=](const Tensors& x) { return sgd(x, 1, false, scaled); },
        [=](const Arrays& x) { return sgd_of(x, 1, false, scaled); });
  }
}

Arrays with_half_gradient(Arrays x, DType half) {
  x[1] = map(x[1], [half](double g) { return rounded(g, half); });
  return x;
}

void add_master_steps(OpTable& table, const Shape& shape) {
  InputSpec wide{.shape = shape, .dtype = DType::float32, .requires_grad = false};
  InputSpec positive = wide, half = wide;
  positive.low = 0.1;
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    half.dtype = dtype;
    const std::string what = "masters of " + std::string(name(dtype)) + ", " + to_string(shape);
    add_row(
        table, "adam_step", what, {half, half, wide, positive, wide},
        [=](const Tensors& x) { return adam(x, true); },
        [=](const Arrays& x) { return adam_of(with_half_gradient(x, dtype), true); });
    table.back().dtypes = {DType::float32};
    add_row(
        table, "sgd_step", what, {half, half, wide, wide},
        [=](const Tensors& x) { return sgd(x, 1, true); },
        [=](const Arrays& x) { return sgd_of(with_half_gradient(x, dtype), 1, true); });
    table.back().dtypes = {DType::float32};
  }
}

}  // namespace

void add_optimizer(OpTable& table) {
  add_norms(table);
  add_steps(table, {5, 7});
  add_steps(table, {130, 65});
  add_scaled_steps(table, {5, 7});
  add_master_steps(table, {5, 7});
  add_master_steps(table, {130, 129});
}

}  // namespace sash::testing
