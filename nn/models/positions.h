#pragma once

#include <cstdint>
#include <string>

#include "../../core/error.h"
#include "../../tensor/tensor.h"

namespace sash::nn {

/// `ShapeError` unless a model with `positions` learnt positions has one for each of the `added`
/// tokens [B, T], which follow `before` other tokens.
inline void check_room(const char* op, int64_t positions, int64_t before, const Tensor& added) {
  const int64_t count = added.size(1);
  if (before + count <= positions) return;
  throw ShapeError(op,
                   "a text of at most " + std::to_string(positions) +
                       " tokens, one for each position of the model",
                   std::to_string(before + count) + " tokens (" + std::to_string(before) +
                       " before and " + std::to_string(count) +
                       " new); shorten it or generate fewer");
}

}  // namespace sash::nn
