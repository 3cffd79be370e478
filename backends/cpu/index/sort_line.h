#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "../../../core/backend/kernel.h"

/// Stable sorting of one line by unsigned keys.
namespace sash::cpu {

/// Unsigned numbers in the order of T: NaN is the largest, and -0 equals 0.
template <class T>
using key_t = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
key_t<T> ascending_key(T x) {
  using Key = key_t<T>;
  constexpr Key sign = Key{1} << (8 * sizeof(Key) - 1);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<Key>(x) ^ sign;
  } else {
    const Key bits = std::bit_cast<Key>(x + T(0));  // -0 becomes 0
    const Key key = bits & sign ? ~bits : bits | sign;
    return x != x ? std::numeric_limits<Key>::max() : key;
  }
}

template <class Key>
struct Keyed {
  Key key;
  Key place;
};

/// Sorts by key, in memory for `count` entries.
template <class Key>
class LineSort {
 public:
  using Entry = Keyed<Key>;

  LineSort(const KernelContext& context, int64_t count)
      : count_(static_cast<size_t>(count)),
        memory_(context, 2 * count * static_cast<int64_t>(sizeof(Entry))),
        entries_(memory_.ptr<Entry>()),
        other_(entries_ + count) {}

  /// The caller fills these, in the order of their places, before each `run`.
  std::span<Entry> entries() const { return {entries_, count_}; }

  void run() {
    constexpr size_t kShort = 384;  // shorter lines are sorted by comparing
    if (count_ <= kShort) {
      std::sort(entries_, entries_ + count_, [](const Entry& a, const Entry& b) {
        return a.key != b.key ? a.key < b.key : a.place < b.place;
      });
      return;
    }
    std::array<std::array<uint32_t, kDigits>, kPasses> count{};
    for (const Entry& entry : entries()) {
      for (size_t pass = 0; pass < kPasses; ++pass) ++count[pass][digit(entry.key, pass)];
    }
    for (size_t pass = 0; pass < kPasses; ++pass) {
      if (count[pass][digit(entries_[0].key, pass)] == count_) continue;  // all are equal
      uint32_t next = 0;
      for (uint32_t& at : count[pass]) next += std::exchange(at, next);
      for (const Entry& entry : entries()) other_[count[pass][digit(entry.key, pass)]++] = entry;
      std::swap(entries_, other_);
    }
  }

 private:
  static constexpr int kBits = 8;
  static constexpr size_t kDigits = size_t{1} << kBits, kPasses = sizeof(Key);

  static size_t digit(Key key, size_t pass) {
    return static_cast<size_t>(key >> (kBits * pass)) & (kDigits - 1);
  }

  size_t count_;
  Workspace memory_;
  Entry *entries_, *other_;
};

}  // namespace sash::cpu
