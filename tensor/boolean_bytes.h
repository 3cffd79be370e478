#pragma once

#include <cstdint>
#include <optional>

#include "../core/backend/tensor_view.h"

namespace sash {

/// Returns the first byte of booleans on the CPU that is neither 0 nor 1, or nullopt.
std::optional<uint8_t> first_not_boolean(const TensorView& booleans);

}  // namespace sash
