// Steps of optimizers that are rules of one element.
#include <sash/ops/kernels/update_rules.h>

#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "cases.h"

namespace sash::testing {
namespace {

constexpr double kRate = 0.01, kDecay = 0.1;

/// inputs: parameter, gradient, states; results: the same without the gradient.
template <class Settings>
void add_rule(OpTable& table, const std::string& name, kernels::RuleKernel<Settings>& kernel,
              const Settings& given, const std::vector<InputSpec>& states,
              const std::function<void(double& p, double g, double* state)>& rule) {
  for (const Shape& shape : {Shape{5, 7}, Shape{130, 65}, Shape{0}}) {
    std::vector<InputSpec> inputs{{shape}, {shape}};
    for (InputSpec state : states) {
      state.shape = shape;
      inputs.push_back(state);
    }
    const auto run = [=, &kernel](const Tensors& x) -> Several<Tensor> {
      const NoGradGuard no_grad;
      Tensors y;
      for (const Tensor& t : x) y.push_back(t.clone());
      const Device device = x[0].device();
      const Tensor lr = full({}, kRate, {.dtype = DType::float64, .device = device});
      const Tensor step = full({}, 2, {.dtype = DType::int64, .device = device});
      Settings settings = given;
      if constexpr (requires { settings.lr; }) settings.lr = lr.data<const double>();
      kernels::RuleTensors tensors{.dtype = y[0].dtype(),
                                   .count = y[0].numel(),
                                   .parameter = y[0].tensor_view().data,
                                   .gradient = y[1].tensor_view().data,
                                   .step = step.data<int64_t>()};
      for (size_t k = 2; k < y.size(); ++k) tensors.state[k - 2] = y[k].tensor_view().data;
      KernelContext context = kernel_context(device);
      kernel(context, {&tensors, 1}, settings);
      y.erase(y.begin() + 1);
      return y;
    };
    const auto reference = [=](const Arrays& x) -> Several<Array> {
      Arrays y = x;
      for (size_t i = 0; i < y[0].values.size(); ++i) {
        double state[2] = {};
        for (size_t k = 2; k < y.size(); ++k) state[k - 2] = y[k].values[i];
        rule(y[0].values[i], x[1].values[i], state);
        for (size_t k = 2; k < y.size(); ++k) y[k].values[i] = state[k - 2];
      }
      y.erase(y.begin() + 1);
      return y;
    };
    table.push_back({.op = name,
                     .variant = to_string(shape),
                     .inputs = inputs,
                     .run = run,
                     .reference = reference,
                     .differentiable = false});
  }
}

}  // namespace

void add_update_rules(OpTable& table) {
  const InputSpec any{}, positive{.shape = {}, .low = 0.1, .high = 2};
  add_rule<kernels::LionSettings>(
      table, "lion_step", kernels::lion_step, {.beta1 = 0.9, .beta2 = 0.99, .weight_decay = kDecay},
      {any}, [](double& p, double g, double* m) {
        const double c = 0.9 * m[0] + 0.1 * g;
        p = p * (1 - kRate * kDecay) - kRate * static_cast<double>((c > 0) - (c < 0));
        m[0] = 0.99 * m[0] + 0.01 * g;
      });
  add_rule<kernels::RmspropSettings>(
      table, "rmsprop_step", kernels::rmsprop_step,
      {.alpha = 0.9, .eps = 1e-8, .momentum = 0.8, .weight_decay = kDecay}, {positive, any},
      [](double& p, double g, double* state) {
        g += kDecay * p;
        state[0] = 0.9 * state[0] + 0.1 * g * g;
        state[1] = 0.8 * state[1] + g / (std::sqrt(state[0]) + 1e-8);
        p -= kRate * state[1];
      });
  add_rule<kernels::MuonSettings>(table, "muon_direction", kernels::muon_direction,
                                  {.momentum = 0.9, .nesterov = true}, {any, any},
                                  [](double&, double g, double* state) {
                                    state[0] = 0.9 * state[0] + 0.1 * g;
                                    state[1] = 0.1 * g + 0.9 * state[0];
                                  });
  add_rule<kernels::DecayedStepSettings>(
      table, "decayed_step", kernels::decayed_step, {.size = 3, .weight_decay = kDecay}, {},
      [](double& p, double g, double*) { p = p * (1 - kRate * kDecay) - 3 * kRate * g; });
}

}  // namespace sash::testing
