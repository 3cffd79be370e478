#include "checkpoint.h"

#include "factories.h"
#include "node.h"
#include "random.h"
#include "tensor_impl.h"

namespace sash {
namespace {

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// Rewinds the generator for a scope, so that dropout draws the same masks again.
class RandomStateGuard {
 public:
  explicit RandomStateGuard(RandomState state) : before_(random_state()) {
    set_random_state(state);
  }
  ~RandomStateGuard() { set_random_state(before_); }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  RandomState before_;
};

Gradients run_again(const Function& fn, const std::vector<Saved>& saved, RandomState state,
                    Backward& pass, std::span<const Tensor> grads) {
  if (pass.create_graph()) {
    throw AutogradError("checkpoint", "a pass without create_graph",
                        "one with it: the second run has no second derivatives");
  }
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < saved.size(); ++i) {
    inputs.push_back(pass(saved[i]).detach());
    if (pass.needs(i)) inputs.back().requires_grad_();
  }
  const std::vector<Tensor> outputs = [&] {
    const RandomStateGuard rewound(state);
    const EnableGradGuard recording;
    return fn(inputs);
  }();
  std::vector<Tensor> roots, seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(grads[i]);
  }
  backward(roots, seeds);
  Gradients gradients(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!pass.needs(i)) continue;
    gradients[i] = inputs[i].grad().defined() ? inputs[i].grad() : zeros_like(inputs[i]);
  }
  return gradients;
}

}  // namespace

std::vector<Tensor> checkpoint(Function fn, const std::vector<Tensor>& inputs) {
  const RandomState state = random_state();
  std::vector<Tensor> outputs = [&] {
    const NoGradGuard no_grad;
    return fn(inputs);
  }();
  const std::vector<TensorRef> in(inputs.begin(), inputs.end());
  if (!detail::should_record(in)) return outputs;
  for (Tensor& output : outputs) {
    // An output may be an input, or a view of one; it must not take on their history.
    if (output.impl().is_view || output.requires_grad()) output = output.clone().detach();
  }
  std::vector<Saved> saved;
  for (const Tensor& input : inputs) saved.push_back(save(input));
  auto again = [fn = std::move(fn), saved = std::move(saved), state](
                   Backward& pass, std::span<const Tensor> grads) {
    return run_again(fn, saved, state, pass, grads);
  };
  detail::attach(detail::make_node("checkpoint", std::move(again)), in, outputs);
  return outputs;
}

Tensor checkpoint(std::function<Tensor(const Tensor&)> fn, const Tensor& input) {
  return checkpoint(
      [fn = std::move(fn)](const std::vector<Tensor>& x) { return std::vector<Tensor>{fn(x[0])}; },
      std::vector<Tensor>{input})[0];
}

}  // namespace sash
