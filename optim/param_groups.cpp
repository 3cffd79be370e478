#include "param_groups.h"

#include "../core/error.h"
#include "../nn/name_pattern.h"

namespace sash::optim {

std::vector<ParamGroup> param_groups(const nn::Module& model, std::vector<ParamGroup> groups) {
  std::vector<nn::NamePattern> patterns;
  for (const ParamGroup& group : groups) patterns.emplace_back("param_groups", group.pattern);
  ParamGroup rest;
  for (const auto& [name, parameter] : model.named_parameters()) {
    size_t taker = 0;
    while (taker < groups.size() && !patterns[taker].matches(name)) ++taker;
    (taker < groups.size() ? groups[taker] : rest).parameters.push_back(parameter);
  }
  for (const ParamGroup& group : groups) {
    if (!group.parameters.empty()) continue;
    throw ValueError("param_groups", "a pattern that matches a remaining parameter",
                     "'" + group.pattern + "'");
  }
  if (!rest.parameters.empty()) groups.push_back(std::move(rest));
  return groups;
}

}  // namespace sash::optim
