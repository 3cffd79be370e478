#pragma once

#include <cstdint>

#include "../nn/module.h"
#include "ema.h"
#include "optimizer.h"

namespace sash::optim {

struct BlockRegrowthOptions {
  double fraction = 0.1;   ///< of the blocks of each layer
  uint64_t seed = 0;       ///< of the new places; give each call another
  EMA* average = nullptr;  ///< of the weights, if there is one
};

/// Moves the weakest blocks of every block-sparse `nn::Linear` of `model` to random places that had
/// none (Mocanu et al., "Scalable training of artificial neural networks with adaptive sparse
/// connectivity", 2018). Of each layer floor(fraction blocks), those of the smallest Frobenius
/// norm; fewer if fewer places are free. Moved blocks are zeros, their gradients and the
/// optimizer's moments and the average for them too, and all else stays. An `EMA` that is not given
/// mixes what blocks of several places had. Returns how many blocks moved.
///
/// To be called every so many steps, between `step()` and the next forward pass: a graph recorded
/// before can no longer be differentiated. `ValueError` unless 0 <= fraction <= 1, and optimizer
/// and average have the layers' weights; nothing has moved then.
SASH_API int64_t regrow_blocks(Optimizer& optimizer, nn::Module& model,
                               const BlockRegrowthOptions& options = {});

}  // namespace sash::optim
