#pragma once

#include <algorithm>
#include <cstdint>

#include "../../../core/philox.h"
#include "../random/philox_blocks.h"
#include "../shape/convert.h"

namespace sash::cpu {

/// The parameters of a dropout.
struct DropoutRule {
  uint64_t seed;
  uint64_t first;  ///< random counter of element 0
  uint32_t threshold;
  double scale;

  DropoutRule(double p, const PhiloxState& state)
      : seed(state.seed),
        first((state.base ? *state.base : 0) + state.offset),
        threshold(dropout_threshold(p)),
        scale(p == 1 ? 0 : 1 / (1 - p)) {}
};

/// y[i] = x[i] times the multiplier of element flat + i. y may be x. If x or y has halves, the
/// product is computed in float32.
template <class Out, class In>
void drop(const DropoutRule& rule, int64_t flat, int64_t n, Out* y, const In* x) {
  using T = compute_t<In>;
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
    alignas(64) T wide[kDraws];
    const T* from = wide;
    T* to = wide;
    if constexpr (!kIsHalf<In>) from = x + i;
    if constexpr (kIsHalf<In>) widen(x + i, count, wide);
    if constexpr (!kIsHalf<Out>) to = y + i;
    const auto apply = [&](int64_t j) {
      to[j] = from[j] * (bits[skip + j] >= rule.threshold ? scale : T(0));
    };
    if (count == kDraws) {
      for (int64_t j = 0; j < kDraws; ++j) apply(j);
    } else {
      for (int64_t j = 0; j < count; ++j) apply(j);
    }
    if constexpr (kIsHalf<Out>) narrow(wide, count, y + i);
    i += count;
  }
}

}  // namespace sash::cpu
