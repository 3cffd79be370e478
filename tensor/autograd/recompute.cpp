#include "recompute.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "../draws.h"
#include "../factories.h"
#include "../tensor_impl.h"
#include "autocast.h"
#include "node.h"

namespace sash {
namespace {

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

constinit thread_local bool second_run = false;

class SecondRun {
 public:
  SecondRun() : outer_(std::exchange(second_run, true)) {}
  ~SecondRun() { second_run = outer_; }
  SecondRun(const SecondRun&) = delete;
  SecondRun& operator=(const SecondRun&) = delete;

 private:
  bool outer_;
};

template <class F>
void check_callable(const F& fn) {
  if (!fn) throw ValueError("checkpoint", "a function", "an empty one");
}

// One recorded call of the function, on inputs cut off from their history.
struct Run {
  std::vector<Tensor> inputs, outputs;
  std::vector<Edge> captured;  // recorded tensors and variables that it uses beside its inputs
  uint64_t first = detail::next_sequence();
};

Edge edge_or_none(const Tensor& input) { return input.defined() ? detail::edge_of(input) : Edge(); }

bool contains(const std::vector<Edge>& edges, const Edge& edge) {
  return std::find(edges.begin(), edges.end(), edge) != edges.end();
}

template <class Needs>
Run run_recorded(const Function& fn, const std::vector<Tensor>& inputs,
                 std::optional<DType> autocast, const Needs& needs) {
  Run run;
  std::vector<Edge> own;
  for (size_t i = 0; i < inputs.size(); ++i) {
    run.inputs.push_back(needs(i) ? inputs[i].detach().requires_grad_() : inputs[i]);
    own.push_back(edge_or_none(run.inputs[i]));
  }
  std::optional<AutocastGuard> own_casts;  // both runs cast the tensors that they capture
  if (autocast) own_casts.emplace(*autocast);
  run.outputs = fn(run.inputs);
  for (const Tensor& output : run.outputs) {
    if (!output.defined()) throw ValueError("checkpoint", "outputs", "an undefined tensor");
  }
  for (const Edge& edge : detail::boundary(run.outputs, run.first)) {
    if (!contains(own, edge)) run.captured.push_back(edge);
  }
  return run;
}

Tensor zeros_at(const Edge& edge) {
  if (edge.leaf) return zeros_like(Tensor(edge.leaf));
  const OutputMeta& meta = edge.node->outputs[edge.output];
  return zeros(meta.shape, {.dtype = meta.dtype, .device = meta.device});
}

struct Checkpoint {
  Function fn;
  detail::Draws draws;  // dropout draws the same masks again
  std::optional<DType> autocast;
  std::vector<Saved> inputs;
  std::vector<Edge> captured;
  std::vector<Saved> captured_leaves;  // for their versions

  Gradients operator()(Backward& pass, std::span<const Tensor> grads) const {
    if (pass.create_graph()) {
      throw AutogradError("checkpoint", "a pass without create_graph",
                          "one with it: the second run has no second derivatives");
    }
    for (const Saved& leaf : captured_leaves) pass(leaf);  // throws if it was overwritten
    std::vector<Tensor> given;
    for (const Saved& input : inputs) {
      const Tensor x = pass(input);
      given.push_back(x.defined() ? x.detach() : x);
    }
    const Run run = [&] {
      const detail::RepeatedDraws repeated("checkpoint", draws);
      const EnableGradGuard recording;
      const SecondRun second;
      Run again = run_recorded(fn, given, autocast, [&](size_t i) { return pass.needs(i); });
      repeated.check_all_used();
      return again;
    }();
    for (const Edge& edge : run.captured) {
      if (!contains(captured, edge)) {
        throw AutogradError("checkpoint", "a second run like the first",
                            "one that uses another tensor that requires grad");
      }
    }
    return gradients(run, pass, grads);
  }

  Gradients gradients(const Run& run, Backward& pass, std::span<const Tensor> grads) const {
    std::vector<Tensor> roots, seeds;
    for (size_t i = 0; i < run.outputs.size(); ++i) {
      if (!grads[i].defined() || !run.outputs[i].requires_grad()) continue;
      roots.push_back(run.outputs[i]);
      seeds.push_back(grads[i]);
    }
    std::vector<Edge> edges;
    for (const Tensor& input : run.inputs) edges.push_back(edge_or_none(input));
    edges.insert(edges.end(), captured.begin(), captured.end());
    for (size_t i = 0; i < edges.size(); ++i) {
      if (!pass.needs(i)) edges[i] = Edge();
    }
    const std::vector<Tensor> found = detail::gradients_at(edges, roots, seeds, run.first);
    Gradients gradients(edges.size());
    for (size_t i = 0; i < edges.size(); ++i) {
      if (edges[i]) gradients[i] = found[i].defined() ? found[i] : zeros_at(edges[i]);
    }
    return gradients;
  }
};

}  // namespace

bool recomputing() { return second_run; }

std::vector<Tensor> checkpoint(Function fn, const std::vector<Tensor>& inputs) {
  check_callable(fn);
  if (!grad_enabled()) return fn(inputs);
  const AutocastGuard* const guard = detail::autocast_guard();
  const std::optional<DType> autocast = guard ? std::optional(guard->dtype()) : std::nullopt;
  std::vector<Saved> saved;  // before the run, so that a write by `fn` is found
  for (const Tensor& input : inputs) saved.push_back(save(input));
  detail::Draws draws;
  Run run = [&] {
    const detail::NotedDraws noted(draws);
    return run_recorded(fn, inputs, autocast,
                        [&](size_t i) { return inputs[i].defined() && inputs[i].requires_grad(); });
  }();
  const std::vector<TensorRef> in(inputs.begin(), inputs.end());
  if (!detail::should_record(in) && run.captured.empty()) return run.outputs;
  for (Tensor& output : run.outputs) {
    // What the run did not make itself, or only as a view, must not take on its history.
    TensorImpl& impl = output.impl();
    const bool made = !impl.base && impl.grad_fn() && impl.grad_fn()->sequence() >= run.first;
    const NoGradGuard no_grad;
    output = made || !is_floating(output.dtype()) ? output.detach() : output.clone();
  }
  Checkpoint again{std::move(fn), std::move(draws), autocast, std::move(saved), run.captured, {}};
  for (const Edge& edge : run.captured) {
    if (edge.leaf) again.captured_leaves.push_back(save(Tensor(edge.leaf)));
  }
  const Ref<Node> node = detail::make_node("checkpoint", std::move(again));
  detail::attach(node, in, run.outputs);
  for (const Edge& edge : run.captured) node->edges.push_back(edge);
  return run.outputs;
}

Tensor checkpoint(std::function<Tensor(const Tensor&)> fn, const Tensor& input) {
  check_callable(fn);
  return checkpoint(
      [fn = std::move(fn)](const std::vector<Tensor>& x) { return std::vector<Tensor>{fn(x[0])}; },
      std::vector<Tensor>{input})[0];
}

}  // namespace sash
