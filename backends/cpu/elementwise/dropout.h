#pragma once

#include <algorithm>
#include <cstdint>

#include "../../../core/philox.h"
#include "../random/philox_blocks.h"

namespace sash::cpu {

/// What all elements of a dropout share.
struct DropoutRule {
  uint64_t seed;
  uint64_t first;  ///< counter of element 0
  uint32_t threshold;
  double scale;

  DropoutRule(double p, const PhiloxState& state)
      : seed(state.seed),
        first((state.base ? *state.base : 0) + state.offset),
        threshold(dropout_threshold(p)),
        scale(p == 1 ? 0 : 1 / (1 - p)) {}
};

/// y[i] = x[i] times the multiplier of element flat + i; y may be x.
template <class T>
void drop(const DropoutRule& rule, int64_t flat, int64_t n, T* y, const T* x) {
  constexpr int64_t kDraws = 128;  // a whole number of draws on every processor
  const T scale = static_cast<T>(rule.scale);
  alignas(64) uint32_t bits[kDraws];
  for (int64_t i = 0; i < n;) {
    const int64_t skip = (flat + i) % 4;  // lanes of the first block that come before this one
    const int64_t count = std::min(n - i, kDraws - skip);
    const uint64_t counter = rule.first + static_cast<uint64_t>((flat + i) / 4);
    for (int64_t j = 0; 4 * j < skip + count; j += kPhiloxBlocks) {
      philox_blocks(rule.seed, counter + static_cast<uint64_t>(j), bits + 4 * j);
    }
    const auto apply = [&](int64_t j) {
      y[i + j] = x[i + j] * (bits[skip + j] >= rule.threshold ? scale : T(0));
    };
    if (count == kDraws) {
      for (int64_t j = 0; j < kDraws; ++j) apply(j);
    } else {
      for (int64_t j = 0; j < count; ++j) apply(j);
    }
    i += count;
  }
}

}  // namespace sash::cpu
