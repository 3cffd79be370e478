#include "../tensor/autograd/grad_mode.h"
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
  LoadReport report = check.finish(strict);
  visit("", [&](const std::string& prefix, const Module& module) {
    module.named_errors([&] { module.check_load(check, prefix.empty() ? "" : prefix + "."); });
  });
  return report;
}

std::function<void()> Module::prepare_load(const StateDict& dict, bool strict) const {
  check_state_dict(dict, strict);
  const NoGradGuard no_grad;
  const StateCheck given(type_name() + ".load_state_dict", dict);
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [key, tensor] : state_dict()) {
    const Tensor* const source = given.find(key);
    if (!source) continue;
    // Such that copying it takes no memory.
    Tensor from = source->detach().to(tensor.dtype());
    if (from.device() != tensor.device()) {
      from = tensor.is_contiguous() ? from.contiguous() : from.to(tensor.device());
    }
    copies.emplace_back(tensor, from);
  }
  return [copies = std::move(copies)]() mutable {
    const NoGradGuard guard;
    for (auto& [tensor, from] : copies) tensor.copy_(from);
  };
}

LoadReport Module::load_state_dict(const StateDict& dict, bool strict) {
  LoadReport report = check_state_dict(dict, strict);
  prepare_load(dict, strict)();
  return report;
}

}  // namespace sash::nn
