#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sash::optim {
namespace {

double warming(double lr, int64_t step, int64_t warmup) {
  return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
}

// How far `step` is on the way from `begin` to `end`, in [0, 1].
double progress(int64_t step, int64_t begin, int64_t end) {
  if (step >= end) return 1;
  return std::max(0.0, static_cast<double>(step - begin) / static_cast<double>(end - begin));
}

}  // namespace

double Constant::operator()(int64_t step) const {
  return step < warmup ? warming(lr, step, warmup) : lr;
}

double LinearDecay::operator()(int64_t step) const {
  if (step < warmup) return warming(lr, step, warmup);
  return lr + (floor - lr) * progress(step, warmup, total);
}

double WarmupCosine::operator()(int64_t step) const {
  if (step < warmup) return warming(lr, step, warmup);
  const double angle = std::numbers::pi * progress(step, warmup, total);
  return floor + 0.5 * (lr - floor) * (1 + std::cos(angle));
}

double WarmupStableDecay::operator()(int64_t step) const {
  if (step < warmup) return warming(lr, step, warmup);
  return lr + (floor - lr) * progress(step, std::max(warmup, total - decay), total);
}

}  // namespace sash::optim
