#pragma once

#include <cstdint>

namespace sash::testing {

/// Small and reproducible (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// In [0, count).
  uint64_t below(uint64_t count) { return next() % count; }

 private:
  uint64_t state_;
};

}  // namespace sash::testing
