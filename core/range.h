#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sash {

/// The indices [first, past).
struct IndexRange {
  int64_t first = 0, past = 0;

  int64_t size() const { return past - first; }
  bool empty() const { return first >= past; }
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

inline IndexRange intersect(IndexRange a, IndexRange b) {
  return {std::max(a.first, b.first), std::min(a.past, b.past)};
}

/// The bits of `range` in a word whose bit 0 stands for index `origin`.
inline uint64_t bits_of(IndexRange range, int64_t origin = 0) {
  const int64_t first = std::clamp<int64_t>(range.first - origin, 0, 64);
  const int64_t past = std::clamp<int64_t>(range.past - origin, 0, 64);
  if (first >= past) return 0;
  return (~uint64_t{0} >> (64 - (past - first))) << first;
}

/// The smallest range that holds every set bit of `word`.
inline IndexRange range_of_bits(uint64_t word) {
  if (word == 0) return {};
  return {std::countr_zero(word), static_cast<int64_t>(std::bit_width(word))};
}

}  // namespace sash
