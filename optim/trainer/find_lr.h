#pragma once

#include <vector>

#include "trainer.h"

namespace sash::optim {

struct FindLrOptions {
  double min_lr = 1e-8;
  double max_lr = 1;
  int64_t steps = 100;
  /// Ends when the smoothed loss exceeds its least by more than (stop_factor - 1) |least|.
  double stop_factor = 4;
};

/// What `find_lr` saw.
struct FoundLr {
  std::vector<double> lr{};
  std::vector<double> loss{};  ///< smoothed, one for each rate
  double suggestion = 0;       ///< where the loss falls fastest; 0 if it never does
};

/// The learning rate range test (Smith, "Cyclical learning rates for training neural networks",
/// 2017): trains with rates that grow from step to step by one factor, min_lr to max_lr, and
/// suggests the one where the loss falls fastest over the logarithm of the rate.
///
///     optimizer.set_lr(optim::find_lr(model, optimizer, loader, step).suggestion);
///
/// Leaves model, optimizer, loader and random state as they were, modes and gradients too;
/// meanwhile there are two copies of the first two. `ValueError` unless 0 < min_lr < max_lr, steps
/// is at least 3, stop_factor above 1 and the first loss finite.
SASH_API FoundLr find_lr(nn::Module& model, Optimizer& optimizer, data::Loader& loader,
                         const StepFunction& step, const FindLrOptions& options = {});

}  // namespace sash::optim
