#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "../core/error.h"

namespace sash::optim {
namespace {

double warming(double lr, int64_t step, int64_t warmup) {
  return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
}

void check_least(const char* schedule, const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw ValueError(schedule, std::string(name) + " of at least " + std::to_string(least),
                   std::to_string(value));
}

void check(const char* schedule, bool good, const char* expected, double got) {
  if (!good) throw ValueError(schedule, expected, to_text(got));
}

void check_total(const char* schedule, int64_t warmup, int64_t total) {
  check_least(schedule, "a total", total, 1);
  check_least(schedule, "a warmup", warmup, 0);
  if (warmup <= total) return;
  throw ValueError(schedule, "a warmup of at most total, " + std::to_string(total),
                   std::to_string(warmup));
}

// How far `step` is on the way from `begin` to `end`, in [0, 1].
double progress(int64_t step, int64_t begin, int64_t end) {
  if (step >= end) return 1;
  return std::max(0.0, static_cast<double>(step - begin) / static_cast<double>(end - begin));
}

}  // namespace

double Constant::operator()(int64_t step) const {
  check_least("Constant", "a warmup", warmup, 0);
  return step < warmup ? warming(lr, step, warmup) : lr;
}

double LinearDecay::operator()(int64_t step) const {
  check_total("LinearDecay", warmup, total);
  if (step < warmup) return warming(lr, step, warmup);
  return lr + (floor - lr) * progress(step, warmup, total);
}

double WarmupCosine::operator()(int64_t step) const {
  check_total("WarmupCosine", warmup, total);
  if (step < warmup) return warming(lr, step, warmup);
  const double angle = std::numbers::pi * progress(step, warmup, total);
  return floor + 0.5 * (lr - floor) * (1 + std::cos(angle));
}

double WarmupStableDecay::operator()(int64_t step) const {
  check_total("WarmupStableDecay", warmup, total);
  check_least("WarmupStableDecay", "a decay", decay, 0);
  if (step < warmup) return warming(lr, step, warmup);
  return lr + (floor - lr) * progress(step, std::max(warmup, total - decay), total);
}

double StepDecay::operator()(int64_t step) const {
  check_least("StepDecay", "an every", every, 1);
  check_least("StepDecay", "a warmup", warmup, 0);
  if (step < warmup) return warming(lr, step, warmup);
  return lr * std::pow(factor, static_cast<double>((step - warmup) / every));
}

double ExponentialDecay::operator()(int64_t step) const {
  check_least("ExponentialDecay", "a warmup", warmup, 0);
  if (step < warmup) return warming(lr, step, warmup);
  return lr * std::pow(factor, static_cast<double>(step - warmup));
}

double OneCycle::operator()(int64_t step) const {
  check_least("OneCycle", "a total", total, 1);
  check("OneCycle", rise >= 0 && rise <= 1, "a rise in [0, 1]", rise);
  check("OneCycle", start_factor > 0, "a start_factor above 0", start_factor);
  check("OneCycle", end_factor > 0, "an end_factor above 0", end_factor);
  const auto along = [](double from, double to, double part) {
    return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * part));
  };
  const double at = static_cast<double>(std::min(step, total - 1)), start = lr / start_factor;
  const double last = static_cast<double>(total - 1), top = rise * static_cast<double>(total) - 1;
  if (at <= top) return along(start, lr, top > 0 ? at / top : 1);
  return along(lr, start / end_factor, last > top ? (at - top) / (last - top) : 1);
}

double Chained::operator()(int64_t step) const {
  if (parts.empty()) throw ValueError("Chained", "a schedule", "none");
  for (size_t i = 0; i < parts.size(); ++i) {
    check_least("Chained", "a number of steps", parts[i].second, 0);
    if (parts[i].first) continue;
    throw ValueError("Chained", "schedules", "an empty function as part " + std::to_string(i));
  }
  size_t part = 0;
  for (; part + 1 < parts.size() && step >= parts[part].second; ++part) step -= parts[part].second;
  return parts[part].first(step);
}

double Plateau::operator()(double metric) {
  check("Plateau", factor >= 0 && factor < 1, "a factor in [0, 1)", factor);
  check_least("Plateau", "a patience", patience, 0);
  check_least("Plateau", "a cooldown", cooldown, 0);
  check("Plateau", threshold >= 0, "a threshold of at least 0", threshold);
  // Away from `best` in the better direction, whatever its sign.
  const double margin = best * (maximize == (best >= 0) ? 1 + threshold : 1 - threshold);
  const bool first = std::isnan(best) && !std::isnan(metric);
  if (first || (maximize ? metric > margin : metric < margin)) {
    best = metric;
    bad_calls = 0;
  } else {
    ++bad_calls;
  }
  if (cooling > 0) {
    --cooling;
    bad_calls = 0;
  }
  if (bad_calls > patience) {
    lr = std::max(lr * factor, floor);
    cooling = cooldown;
    bad_calls = 0;
  }
  return lr;
}

LambdaLR::LambdaLR(Optimizer& optimizer, std::function<double(int64_t)> factor)
    : optimizer_(optimizer), factor_(std::move(factor)), loads_(optimizer.loads_) {
  if (!factor_) throw ValueError("LambdaLR", "a function", "an empty one");
  follow();
}

// Groups may have been added, and a state loaded, which has no first rates if it was saved before
// the first `set`.
void LambdaLR::follow() {
  if (std::exchange(loads_, optimizer_.loads_) != optimizer_.loads_) base_.clear();
  for (size_t g = 0; g < optimizer_.num_groups(); ++g) {
    if (g == base_.size()) base_.push_back(optimizer_.lr(g));
    base_[g] = optimizer_.groups_[g].initial_lr.value_or(base_[g]);
  }
}

void LambdaLR::set(int64_t step) {
  if (!factor_) throw ValueError("LambdaLR", "a function", "one that was moved from");
  const double factor = factor_(step);
  follow();
  for (size_t g = 0; g < optimizer_.num_groups(); ++g) {
    optimizer_.set_lr(base_[g] * factor, g);
    optimizer_.groups_[g].initial_lr = base_[g];
  }
}

}  // namespace sash::optim
