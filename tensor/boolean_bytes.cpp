#include "boolean_bytes.h"

#include <algorithm>

namespace sash {
namespace {

const uint8_t* find(const TensorView& booleans, const uint8_t* at, int axis) {
  if (axis == booleans.rank()) return *at > 1 ? at : nullptr;
  const int64_t stride = booleans.strides[axis];
  const int64_t extent = stride == 0 ? std::min<int64_t>(booleans.shape[axis], 1)  // all one byte
                                     : booleans.shape[axis];
  for (int64_t i = 0; i < extent; ++i) {
    if (const uint8_t* const found = find(booleans, at + i * stride, axis + 1)) return found;
  }
  return nullptr;
}

}  // namespace

std::optional<uint8_t> first_not_boolean(const TensorView& booleans) {
  if (booleans.numel() == 0) return std::nullopt;
  const uint8_t* const found = find(booleans, static_cast<const uint8_t*>(booleans.data), 0);
  return found ? std::optional(*found) : std::nullopt;
}

}  // namespace sash
