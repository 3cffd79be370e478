#include "../tensor/autograd/grad_mode.h"
#include "../tensor/tensor_impl.h"
#include "module.h"

namespace sash::nn {

void Module::copy_from(const Module& other) {
  const std::string op = type_name() + ".copy_from";
  StateDict own = named_parameters(), from = other.named_parameters();
  for (const auto& entry : named_buffers()) own.push_back(entry);
  for (const auto& entry : other.named_buffers()) from.push_back(entry);
  StateCheck check(op, from);
  for (const auto& [name, tensor] : own) {
    check.expect(name, tensor.shape(), is_floating(tensor.dtype()));
  }
  check.finish(true);
  std::vector<std::pair<const Module*, const Module*>> modules;
  {
    std::vector<const Module*> here, there;
    visit("", [&](const std::string&, const Module& module) { here.push_back(&module); });
    other.visit("", [&](const std::string&, const Module& module) { there.push_back(&module); });
    if (here.size() != there.size()) {
      throw ValueError(op, std::to_string(here.size()) + " modules", std::to_string(there.size()));
    }
    for (size_t i = 0; i < here.size(); ++i) modules.emplace_back(here[i], there[i]);
  }
  const NoGradGuard no_grad;
  std::vector<Tensor> clones;
  for (const auto& [name, tensor] : own) clones.push_back(check.find(name)->detach().clone());
  for (size_t i = 0; i < own.size(); ++i) {
    const bool trained = check.find(own[i].first)->requires_grad();
    replace_elements(own[i].second.impl(), clones[i]);
    own[i].second.requires_grad_(trained);
    own[i].second.zero_grad();
  }
  for (auto& [to, source] : modules) const_cast<Module*>(to)->modes_ = source->modes_;
}

}  // namespace sash::nn
