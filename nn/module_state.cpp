#include "../tensor/grad_mode.h"
#include "module.h"

namespace sash::nn {

StateDict Module::state_dict() const {
  StateDict dict;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const StateDict* part : {&module.parameters_, &module.buffers_}) {
      for (const auto& [name, tensor] : *part) {
        dict.emplace_back(prefix.empty() ? name : prefix + "." + name, tensor.detach());
      }
    }
  });
  return dict;
}

LoadReport Module::check_state_dict(const StateDict& dict, bool strict) const {
  StateCheck check(type_name() + ".load_state_dict", dict);
  for (const auto& [key, tensor] : state_dict()) {
    check.expect(key, tensor.shape(), is_floating(tensor.dtype()));
  }
  return check.finish(strict);
}

LoadReport Module::load_state_dict(const StateDict& dict, bool strict) {
  LoadReport report = check_state_dict(dict, strict);
  const NoGradGuard no_grad;
  const StateCheck given(type_name() + ".load_state_dict", dict);
  for (auto& [key, tensor] : state_dict()) {
    if (const Tensor* source = given.find(key)) tensor.copy_(*source);
  }
  return report;
}

}  // namespace sash::nn
