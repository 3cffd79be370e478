#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../tensor.h"

namespace sash {

/// Tensors by name ("layers.0.norm1.weight"), in the order of their registration.
using StateDict = std::vector<std::pair<std::string, Tensor>>;

/// The tensor called `name`, or null.
inline const Tensor* find(const StateDict& dict, std::string_view name) {
  for (const auto& [key, tensor] : dict) {
    if (key == name) return &tensor;
  }
  return nullptr;
}

}  // namespace sash
