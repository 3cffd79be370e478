#pragma once

#include <cstdint>

#include "../nn/module.h"
#include "ema.h"
#include "optimizer.h"

namespace sash::optim {

struct BlockRegrowthOptions {
  double fraction = 0.1;   ///< share of the blocks of each layer
  uint64_t seed = 0;       ///< of the new places; use a different seed in each call
  EMA* average = nullptr;  ///< of the weights, if there is one
};

/// Moves the blocks with the smallest Frobenius norms of every block-sparse `nn::Linear` of `model`
/// to random free places (Mocanu et al., "Scalable training of artificial neural networks with
/// adaptive sparse connectivity", 2018). In each layer floor(fraction blocks) blocks move, or as
/// many as there are free places. Moved blocks become zeros, and so do their gradients, the
/// optimizer's moments and the average. Everything else stays unchanged. Pass the `EMA` if there is
/// one; otherwise its averages mix blocks of different places. Returns how many blocks moved.
///
/// Call it every N steps, between `step()` and the next forward pass: a graph recorded before the
/// call can no longer be differentiated. `ValueError` unless 0 <= fraction <= 1, and unless
/// optimizer and average have the layers' weights; nothing is moved then.
SASH_API int64_t regrow_blocks(Optimizer& optimizer, nn::Module& model,
                               const BlockRegrowthOptions& options = {});

}  // namespace sash::optim
