#include <algorithm>

#include "module.h"

namespace sash::nn {

void HookHandle::remove() {
  const auto hooks = hooks_.lock();
  const auto hook = hook_.lock();
  if (hooks && hook) std::erase(*hooks, hook);
}

HookHandle Module::register_forward_hook(ForwardHook hook) {
  if (!hook) throw ValueError(type_name() + ".register_forward_hook", "a function", "an empty one");
  if (!hooks_) hooks_ = std::make_shared<HookHandle::Hooks>();
  hooks_->push_back(std::make_shared<ForwardHook>(std::move(hook)));
  return {hooks_, hooks_->back()};
}

Tensor Module::run_hooks(std::span<const Tensor> inputs, Tensor output) const {
  const HookHandle::Hooks hooks = *hooks_;  // which may remove themselves
  for (const auto& hook : hooks) {
    const Tensor replacement = (*hook)(*this, inputs, output);
    if (replacement.defined()) output = replacement;
  }
  return output;
}

}  // namespace sash::nn
