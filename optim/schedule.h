#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "optimizer.h"

/// Learning rates as pure functions of the step, counted from 0:
///
///     const optim::WarmupCosine schedule{.lr = 3e-4, .warmup = 100, .total = 2000};
///     optimizer.set_lr(schedule(step));
///
/// Any other function of the step is a schedule too: `[](int64_t step) { return 1e-3 / (1 + step);
/// }`. During the first `warmup` steps a schedule returns lr (step + 1) / warmup. From step `total`
/// on it returns its last value. `ValueError` at the first step for a total or `every` below 1, a
/// warmup that is negative or above total, and other invalid settings.
namespace sash::optim {

/// lr.
struct SASH_API Constant {
  double lr = 1e-3;
  int64_t warmup = 0;

  double operator()(int64_t step) const;
};

/// From lr down to `floor` in a straight line.
struct SASH_API LinearDecay {
  double lr = 1e-3;
  int64_t warmup = 0;
  int64_t total = 0;
  double floor = 0;

  double operator()(int64_t step) const;
};

/// From lr down to `floor` along half a cosine (Loshchilov and Hutter, 2017).
struct SASH_API WarmupCosine {
  double lr = 1e-3;
  int64_t warmup = 0;
  int64_t total = 0;
  double floor = 0;

  double operator()(int64_t step) const;
};

/// Warm-up, stable, decay (Hu et al., 2024): lr until `decay` steps before `total`, then down to
/// `floor` in a straight line.
struct SASH_API WarmupStableDecay {
  double lr = 1e-3;
  int64_t warmup = 0;
  int64_t total = 0;
  int64_t decay = 0;
  double floor = 0;

  double operator()(int64_t step) const;
};

/// lr factor^n with n = floor((step - warmup) / every): `every` counts from the end of the warm-up.
struct SASH_API StepDecay {
  double lr = 1e-3;
  int64_t warmup = 0;
  int64_t every = 1;
  double factor = 0.1;

  double operator()(int64_t step) const;
};

/// lr factor^step, counted from the end of the warm-up.
struct SASH_API ExponentialDecay {
  double lr = 1e-3;
  int64_t warmup = 0;
  double factor = 0.99;

  double operator()(int64_t step) const;
};

/// One cycle (Smith and Topin, 2018): along half a cosine from lr / start_factor up to lr, during
/// the share `rise` of `total` steps, then along another down to lr / start_factor / end_factor.
struct SASH_API OneCycle {
  double lr = 1e-3;  ///< the highest
  int64_t total = 0;
  double rise = 0.3;
  double start_factor = 25;
  double end_factor = 1e4;

  double operator()(int64_t step) const;
};

/// A learning rate for each step.
using Schedule = std::function<double(int64_t step)>;

/// Schedules one after the other, each with steps from 0:
///
///     const optim::Chained schedule{{{warm, 100}, {decay, 900}}};
///
/// The last schedule continues beyond its steps.
struct SASH_API Chained {
  std::vector<std::pair<Schedule, int64_t>> parts;  ///< with the number of steps of each

  /// `ValueError` if there are no parts, or one is an empty function or has a negative number of
  /// steps.
  double operator()(int64_t step) const;
};

/// Multiplies the learning rate with `factor` when a metric, such as the validation loss, has not
/// improved for more than `patience` calls: `optimizer.set_lr(plateau(loss))`. The state is public,
/// so that it can be saved. It is not a `Schedule`; a `Trainer` takes it as `plateau`.
struct SASH_API Plateau {
  double lr = 1e-3;
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;  ///< better means below best - threshold |best|; NaN is never better
  int64_t cooldown = 0;     ///< calls after a decrease that count as good
  double floor = 0;         ///< of the learning rate
  bool maximize = false;    ///< better means above best + threshold |best|

  double best = std::numeric_limits<double>::quiet_NaN();  ///< state, like the next two
  int64_t bad_calls = 0;
  int64_t cooling = 0;

  double operator()(double metric);
  double operator()(std::same_as<int64_t> auto) = delete;  ///< a step is not a metric
};

/// Sets the learning rate of every group to its initial rate times `factor(step)`, which preserves
/// the ratios of groups. The initial rates are those at construction; for groups added later, those
/// at their first `set`. The optimizer's state has them for a resumed run, whose LambdaLR may be
/// made before or after loading. After `set_lr`, a new LambdaLR starts from the rate that `set_lr`
/// set.
class SASH_API LambdaLR {
 public:
  /// `ValueError` for an empty function. The optimizer must outlive the LambdaLR.
  LambdaLR(Optimizer& optimizer, std::function<double(int64_t)> factor);

  /// For the step to come.
  void set(int64_t step);

 private:
  void follow();

  Optimizer& optimizer_;
  std::function<double(int64_t)> factor_;
  std::vector<double> base_;
  int64_t loads_;  // of the optimizer, when last seen
};

}  // namespace sash::optim
