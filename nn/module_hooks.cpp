#include <algorithm>

#include "module.h"

namespace sash::nn {

void HookHandle::remove() {
  const auto hooks = hooks_.lock();
  const auto hook = hook_.lock();
  if (hooks && hook) std::erase(*hooks, hook);
}

HookHandle Module::add_hook(HookHandle::Hook hook) {
  if (!hooks_) hooks_ = std::make_shared<HookHandle::Hooks>();
  // Modules that were moved from share their hooks.
  if (hooks_.use_count() > 1) hooks_ = std::make_shared<HookHandle::Hooks>(*hooks_);
  hooks_->push_back(std::make_shared<HookHandle::Hook>(std::move(hook)));
  return {hooks_, hooks_->back()};
}

HookHandle Module::register_forward_hook(ForwardHook hook) {
  if (!hook) throw ValueError(type_name() + ".register_forward_hook", "a function", "an empty one");
  return add_hook({{}, std::move(hook)});
}

HookHandle Module::register_forward_pre_hook(ForwardPreHook hook) {
  if (!hook) {
    throw ValueError(type_name() + ".register_forward_pre_hook", "a function", "an empty one");
  }
  return add_hook({std::move(hook), {}});
}

void Module::run_pre_hooks(const std::vector<Tensor>& inputs) const {
  const HookHandle::Hooks hooks = *hooks_;  // which may remove themselves
  for (const auto& hook : hooks) {
    if (hook->before) hook->before(*this, inputs);
  }
}

Tensor Module::run_hooks(const std::vector<Tensor>& inputs, Tensor output) const {
  const HookHandle::Hooks hooks = *hooks_;
  for (const auto& hook : hooks) {
    if (!hook->after) continue;
    const Tensor replacement = hook->after(*this, inputs, output);
    if (replacement.defined()) output = replacement;
  }
  return output;
}

}  // namespace sash::nn
