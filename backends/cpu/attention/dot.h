#pragma once

#include <cstdint>

namespace sash::cpu {

/// a . b. The order of the sum depends on n alone, so equal vectors have equal products.
template <class T>
T dot_of(const T* a, const T* b, int64_t n) {
  // Lanes that a compiler turns into vectors.
  constexpr int kDotLanes = 16;
  T sums[kDotLanes] = {};
  int64_t d = 0;
  for (; d + kDotLanes <= n; d += kDotLanes) {
    for (int lane = 0; lane < kDotLanes; ++lane) sums[lane] += a[d + lane] * b[d + lane];
  }
  T total = 0;
  for (; d < n; ++d) total += a[d] * b[d];
  for (const T sum : sums) total += sum;
  return total;
}

}  // namespace sash::cpu
