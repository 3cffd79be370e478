#pragma once

#include <cstdint>
#include <string>

#include "../../core/scalar.h"

/// Fields of files that become elements of a tensor.
namespace sash::nn::data {

/// Whether a tensor of `dtype`, integral or bool, holds `value`.
inline bool fits(DType dtype, int64_t value) {
  return dtype == DType::boolean ? value == 0 || value == 1 : holds(dtype, value);
}

/// What a field must be, in errors.
inline std::string expected_number(DType dtype) {
  if (dtype == DType::boolean) return "0 or 1";
  if (is_floating(dtype)) return "a number";
  return "a whole number of " + std::string(name(dtype));
}

}  // namespace sash::nn::data
