#pragma once

#include <vector>

#include "trainer.h"

namespace sash::optim {

struct FindLrOptions {
  double min_lr = 1e-8;
  double max_lr = 1;
  int64_t steps = 100;
  /// Ends when the smoothed loss exceeds its minimum by more than (stop_factor - 1) |minimum|.
  double stop_factor = 4;
};

/// The result of `find_lr`.
struct FoundLr {
  std::vector<double> lr{};
  std::vector<double> loss{};  ///< smoothed, one for each rate
  double suggestion = 0;       ///< where the loss falls fastest; 0 if it never falls
};

/// The learning rate range test (Smith, "Cyclical learning rates for training neural networks",
/// 2017): trains with rates that grow from step to step by one factor, min_lr to max_lr, and
/// suggests the one where the loss falls fastest over the logarithm of the rate.
///
///     optimizer.set_lr(optim::find_lr(model, optimizer, loader, step).suggestion);
///
/// Afterwards model, optimizer, loader, random state, modes and gradients are as before. During the
/// test there are two copies of model and optimizer. `ValueError` unless 0 < min_lr < max_lr, steps
/// is at least 3, stop_factor above 1 and the first loss finite.
SASH_API FoundLr find_lr(nn::Module& model, Optimizer& optimizer, nn::data::Loader& loader,
                         const StepFunction& step, const FindLrOptions& options = {});

}  // namespace sash::optim
