#pragma once

#include <cstdint>
#include <string>

#include "../../../core/error.h"

namespace sash::cuda {

/// The extent of an axis that kernels count in 32 bits. Throws `NotImplemented` if there are more
/// than 2^30 elements, so that a tile behind the last one can be counted too.
inline int extent(const char* op, int64_t elements) {
  if (elements > int64_t{1} << 30) {
    throw NotImplemented(op, "an axis of " + std::to_string(elements) + " elements on a card");
  }
  return static_cast<int>(elements);
}

}  // namespace sash::cuda
