#include "find_lr.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "../../core/error.h"
#include "../../nn/eval_guard.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/draws.h"
#include "trainer_state.h"

namespace sash::optim {
namespace {

constexpr const char* kOp = "find_lr";
constexpr double kSmoothing = 0.98;  // of an average whose weights fall by this factor

StateDict copies(const StateDict& dict) {
  const NoGradGuard no_grad;
  StateDict all;
  for (const auto& [name, tensor] : dict) all.emplace_back(name, tensor.clone());
  return all;
}

// Brings everything back that training changes.
class Before {
 public:
  Before(nn::Module& model, Optimizer& optimizer, nn::data::Loader& loader)
      : model_(model),
        optimizer_(optimizer),
        loader_(loader),
        modes_(model),
        load_weights_(model.prepare_load(copies(model.state_dict()))),
        load_state_(optimizer.prepare_load(optimizer.state_dict())),
        place_(loader.state()),
        skips_(optimizer.skip_nonfinite()) {
    const StateDict saved = model.state_dict();
    for (const auto& [name, buffer] : model.named_buffers()) {
      if (!find(saved, name)) transient_.emplace_back(buffer, buffer.detach().clone());
    }
    for (const std::vector<Tensor>& part : {model.parameters(), optimizer.parameters()}) {
      for (Tensor parameter : part) {
        if (!parameter.grad().defined()) continue;
        gradients_.emplace_back(parameter, parameter.grad());
        parameter.zero_grad();
      }
    }
  }
  ~Before() {
    try {
      restore();
    } catch (...) {  // the training's own error is on its way
    }
  }
  Before(const Before&) = delete;
  Before& operator=(const Before&) = delete;

  void restore() {
    if (std::exchange(restored_, true)) return;
    model_.zero_grad();
    optimizer_.zero_grad();
    for (auto& [parameter, gradient] : gradients_) parameter.set_grad(gradient);
    optimizer_.set_skip_nonfinite(skips_);
    load_weights_();
    load_state_();
    const NoGradGuard no_grad;
    for (auto& [buffer, value] : transient_) buffer.copy_(value);
    loader_.load_state(place_);
  }

 private:
  nn::Module& model_;
  Optimizer& optimizer_;
  nn::data::Loader& loader_;
  const nn::EvalGuard modes_;
  std::function<void()> load_weights_, load_state_;
  std::vector<std::pair<Tensor, Tensor>> gradients_;  // of parameters
  std::vector<std::pair<Tensor, Tensor>> transient_;  // buffers that are not saved, what they were
  std::string place_;
  const sash::detail::PrivateDraws draws_{};
  bool skips_, restored_ = false;
};

void check(const FindLrOptions& options) {
  if (!(options.min_lr > 0 && options.min_lr < options.max_lr && std::isfinite(options.max_lr))) {
    throw ValueError(kOp, "0 < min_lr < max_lr",
                     to_text(options.min_lr) + " and " + to_text(options.max_lr));
  }
  if (options.steps < 3) {
    throw ValueError(kOp, "steps of at least 3", std::to_string(options.steps));
  }
  if (!(options.stop_factor > 1)) {
    throw ValueError(kOp, "a stop_factor above 1", to_text(options.stop_factor));
  }
}

// Rates are evenly spaced on a logarithmic axis, so differences are slopes. The first averages are
// of few losses.
double steepest(const FoundLr& found, size_t first) {
  double fall = 0, lr = 0;
  for (size_t i = std::max<size_t>(first, 1); i + 1 < found.loss.size(); ++i) {
    const double here = found.loss[i - 1] - found.loss[i + 1];
    if (here <= fall) continue;
    fall = here;
    lr = found.lr[i];
  }
  return lr;
}

}  // namespace

FoundLr find_lr(nn::Module& model, Optimizer& optimizer, nn::data::Loader& loader,
                const StepFunction& step, const FindLrOptions& options) {
  if (!step) throw ValueError(kOp, "a step function", "an empty one");
  check(options);
  Before before(model, optimizer, loader);
  model.train();
  optimizer.set_skip_nonfinite(true);
  FoundLr found;
  const double factor =
      std::pow(options.max_lr / options.min_lr, 1.0 / static_cast<double>(options.steps - 1));
  double average = 0, least = std::numeric_limits<double>::infinity(), weight = 1;
  for (int64_t i = 0; i < options.steps; ++i) {
    const double lr = options.min_lr * std::pow(factor, static_cast<double>(i));
    optimizer.set_lr(lr);
    optimizer.zero_grad();
    const StepOutput output = step(loader.next_or_restart());
    detail::check_output(kOp, output);
    const Tensor loss = output.loss;
    const auto value = loss.item<double>();
    weight *= kSmoothing;
    average = kSmoothing * average + (1 - kSmoothing) * value;
    const double smooth = average / (1 - weight);
    if (i == 0 && !std::isfinite(value)) {
      throw ValueError(kOp, "a finite loss at the first step", to_text(value));
    }
    const double rise = (options.stop_factor - 1) * std::abs(least);
    const bool grows = i > options.steps / 10 && smooth - least > rise;
    if (!std::isfinite(smooth) || grows) break;
    least = std::min(least, smooth);
    found.lr.push_back(lr);
    found.loss.push_back(smooth);
    loss.backward();
    optimizer.step();
  }
  before.restore();
  found.suggestion = steepest(found, static_cast<size_t>(options.steps / 10));
  return found;
}

}  // namespace sash::optim
