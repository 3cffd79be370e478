#pragma once

#include <cstdint>

#include "../core/export.h"

/// Learning rates as pure functions of the step, counted from 0:
///
///     const optim::WarmupCosine schedule{.lr = 3e-4, .warmup = 100, .total = 2000};
///     optimizer.set_lr(schedule(step));
///
/// During the first `warmup` steps each gives lr (step + 1) / warmup. From `total` on each stays at
/// its last value.
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

}  // namespace sash::optim
