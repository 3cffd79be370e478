#include "grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "../core/error.h"
#include "../nn/check.h"
#include "../ops/checks.h"
#include "../ops/elementwise/binary.h"
#include "../ops/elementwise/compare.h"
#include "../ops/elementwise/where.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"
#include "../tensor/graph.h"
#include "../tensor/io/state_check.h"

namespace sash::optim {
namespace {

constexpr const char* kGradScaler = "GradScaler";

Tensor number(double value) {
  return scalar_tensor(value, {.dtype = DType::float64, .device = kCPU});
}

void check(bool good, const char* expected, double got) {
  if (!good) throw ValueError(kGradScaler, expected, to_text(got));
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options),
      scale_(number(options.init_scale)),
      growth_tracker_(number(0)),
      bad_steps_(number(0)) {
  check(options.init_scale > 0 && std::isfinite(options.init_scale), "a positive init_scale",
        options.init_scale);
  check(options.growth_factor > 1 && std::isfinite(options.growth_factor),
        "a growth_factor above 1", options.growth_factor);
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "a backoff_factor in (0, 1)",
        options.backoff_factor);
  nn::check_positive(kGradScaler, "growth_interval", options.growth_interval);
}

void GradScaler::move_to(Device device) {
  if (scale_.device() == device) return;
  const NoGradGuard no_grad;
  for (Tensor* x : {&scale_, &growth_tracker_, &bad_steps_}) *x = x->to(device);
}

Tensor GradScaler::scale(const Tensor& loss) {
  check_defined("GradScaler.scale", loss);
  move_to(loss.device());
  return loss * scale_;
}

void GradScaler::step(Optimizer& optimizer) {
  const NoGradGuard no_grad;
  in_graph_ = in_graph_ || Graph::recording();
  const bool again = std::find(stepped_.begin(), stepped_.end(), &optimizer) != stepped_.end();
  if (again && !in_graph_) {
    throw ValueError("GradScaler.step", "an update since this optimizer's last step", "none");
  }
  const Tensor norm = optimizer.scaled_step(scale_);
  bad_steps_.add_(ne(norm - norm, 0).to(DType::float64));  // NaN unless finite
  if (!again) stepped_.push_back(&optimizer);
}

void GradScaler::update() {
  const NoGradGuard no_grad;
  in_graph_ = in_graph_ || Graph::recording();
  if (stepped_.empty() && !in_graph_) {
    throw ValueError("GradScaler.update", "a step since the last update", "none");
  }
  stepped_.clear();
  const Tensor bad = gt(bad_steps_, 0);
  const Tensor good_steps = growth_tracker_ + 1;
  const Tensor grows = ge(good_steps, static_cast<double>(options_.growth_interval));
  const Tensor larger = scale_ * options_.growth_factor;
  const Tensor grown = where(grows, where(isfinite(larger), larger, scale_), scale_);
  scale_.copy_(where(bad, scale_ * options_.backoff_factor, grown));
  growth_tracker_.copy_(masked_fill(masked_fill(good_steps, grows, 0), bad, 0));
  bad_steps_.zero_();
}

StateDict GradScaler::state_dict() const {
  return {{"scale", scale_.detach()}, {"growth_tracker", growth_tracker_.detach()}};
}

void GradScaler::check_state_dict(const StateDict& dict) const {
  StateCheck given("GradScaler.load_state_dict", dict);
  given.expect("scale", {}, true);
  given.expect("growth_tracker", {}, true);
  given.finish(true);
  const auto scale = given.find("scale")->item<double>();
  if (!(scale > 0 && std::isfinite(scale))) {
    throw ValueError("GradScaler.load_state_dict", "a positive, finite scale", to_text(scale));
  }
  const auto good_steps = given.find("growth_tracker")->item<double>();
  if (good_steps >= 0 && std::isfinite(good_steps)) return;
  throw ValueError("GradScaler.load_state_dict", "a growth_tracker of at least 0",
                   to_text(good_steps));
}

void GradScaler::load_state_dict(const StateDict& dict) {
  check_state_dict(dict);
  const NoGradGuard no_grad;
  scale_.copy_(*find(dict, "scale"));
  growth_tracker_.copy_(*find(dict, "growth_tracker"));
  bad_steps_.zero_();
  stepped_.clear();
}

}  // namespace sash::optim
