#pragma once

#include <string>
#include <vector>

#include <sash/nn/module.h>

namespace sash::testing {

using Names = std::vector<std::string>;

/// The names in a state.
inline Names keys(const StateDict& state) {
  Names names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  return names;
}

/// The names in a module's state.
inline Names keys(const nn::Module& module) { return keys(module.state_dict()); }

}  // namespace sash::testing
