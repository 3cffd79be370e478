#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "../tensor.h"

namespace sash {

static_assert(std::endian::native == std::endian::little);

/// Copies integers of `width` bytes, below the width of `to`, into `to`, int32 or int64.
inline void widen(const uint8_t* from, int width, bool is_signed, Tensor& to) {
  const auto copy = [&]<class T>(T* element) {
    const int unused = 64 - 8 * width;
    for (int64_t i = 0; i < to.numel(); ++i, from += width) {
      uint64_t bits = 0;
      std::memcpy(&bits, from, static_cast<size_t>(width));
      const auto extended = static_cast<int64_t>(bits << unused) >> unused;
      element[i] = static_cast<T>(is_signed ? extended : static_cast<int64_t>(bits));
    }
  };
  if (to.dtype() == DType::int32) return copy(to.data<int32_t>());
  copy(to.data<int64_t>());
}

}  // namespace sash
