#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_set>

#include "../../core/backend/kernel.h"
#include "../factories.h"
#include "../graph.h"
#include "../kernels/gradients.h"
#include "../run_kernel.h"
#include "../tensor_impl.h"
#include "anomaly.h"
#include "autocast.h"
#include "backward_pass.h"

namespace sash {

namespace kernels {
constinit decltype(accumulate) accumulate{"accumulate"};
constinit decltype(sum) sum{"sum"};
}  // namespace kernels

using detail::add_into;
using detail::edge_of;
using detail::Pass;
using detail::PassLease;
using detail::Slot;

namespace {

std::string describe(const Shape& shape, DType dtype, Device device) {
  return std::string(name(dtype)) + " " + to_string(shape) + " on " + to_string(device);
}

std::string describe(const Tensor& x) { return describe(x.shape(), x.dtype(), x.device()); }

void check_gradient(const Node& node, size_t input, const Tensor& g, const Shape& shape,
                    DType dtype, Device device) {
  if (g.shape() == shape && g.dtype() == dtype && g.device() == device) return;
  throw AutogradError(node.name(), "the gradient of input " + std::to_string(input) +
                                       ": expected " + describe(shape, dtype, device) + ", got " +
                                       describe(g));
}

void accumulate(const Tensor& a, const Tensor& b, const Tensor& y) {
  run_kernel(kernels::accumulate, a, b, y);
}

// A copy of the hook runs: it may register another one.
void run_hook(const TensorHook hook, Tensor& g) {
  Tensor replaced = hook(g);
  if (!replaced.defined()) return;
  if (replaced.shape() != g.shape() || replaced.dtype() != g.dtype() ||
      replaced.device() != g.device()) {
    throw AutogradError("register_hook", "a gradient like the one it got, " + describe(g),
                        describe(replaced));
  }
  g = std::move(replaced);
}

void run_leaf_hooks(const TensorImpl& leaf, Tensor& g) {
  for (size_t i = 0, n = leaf.hooks ? leaf.hooks->size() : 0; i < n; ++i) {
    run_hook((*leaf.hooks)[i], g);
  }
}

// A copy runs: a hook may register another one.
void run_grad_hooks(const TensorImpl& leaf) {
  if (!leaf.grad_hooks) return;
  for (const std::function<void()>& hook : std::vector(*leaf.grad_hooks)) hook();
}

// Threads that run backward passes at the same time take turns at a leaf, and at that leaf only.
// Each queues its addition on its current stream.
void add_to_leaf(TensorImpl& leaf, Tensor g) {
  Tensor before;  // destroyed after the lock: user code may run then
  const std::lock_guard lock(leaf.mutex);
  detail::note_gradient(leaf, true);
  if (!leaf.grad.defined()) {
    leaf.grad = owns_alone(g) ? std::move(g) : g.clone();
  } else if (grad_enabled()) {
    before = std::exchange(leaf.grad, add_gradients(leaf.grad, g));
  } else {
    add_into(leaf.grad, g);
    leaf.grad.impl().storage->bump_version();
  }
}

constinit std::atomic<bool> grad_hooks_exist{false};
constinit thread_local Pass* running = nullptr;

// Makes a pass the one that `after_backward` means.
class PassScope {
 public:
  explicit PassScope(Pass* pass) : outer_(std::exchange(running, pass)) {}
  ~PassScope() { running = outer_; }
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  Pass* outer_;
};

// The ops that were recorded from number `first` on and lead to `outputs`, in the order of
// recording, so that an op comes after those its gradients go to.
std::vector<Node*> reachable(const std::vector<Tensor>& outputs, uint64_t first) {
  std::vector<Node*> found;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](Node* node) {
    if (node && node->sequence() >= first && seen.insert(node).second) found.push_back(node);
  };
  for (const Tensor& output : outputs) visit(output.impl().grad_fn().get());
  for (size_t i = 0; i < found.size(); ++i) {
    for (const Edge& edge : found[i]->edges) visit(edge.node.get());
  }
  std::sort(found.begin(), found.end(),
            [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); });
  return found;
}

// What `grad` asks for: the chosen inputs, and which nodes lead to one.
class Selection {
 public:
  // With `first`, the inputs' own ops are older and not part of it.
  Selection(const std::vector<Tensor>& outputs, std::vector<Edge> inputs, uint64_t first = 0)
      : inputs_(std::move(inputs)), whole_(first == 0) {
    for (Node* node : reachable(outputs, first)) {
      for (const Edge& edge : node->edges) {
        if (edge && wants(edge)) {
          leading_.insert(node);
          break;
        }
      }
    }
  }

  bool wants(const Edge& edge) const {
    return is_input(edge) || (edge.node && leading_.count(edge.node.get()) > 0);
  }
  bool leads(const Node& node) const { return leading_.count(&node) > 0; }
  // Whether hooks run on what arrives at the slot.
  bool runs_hooks(const Slot& slot) const { return whole_ || (slot.node && leads(*slot.node)); }

  void collect(const Slot& slot, std::vector<Tensor>& found) const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const bool here = slot.node ? inputs_[i].node == slot.node : inputs_[i].leaf == slot.leaf;
      if (here) found[i] = slot.grads[inputs_[i].output];
    }
  }

 private:
  bool is_input(const Edge& edge) const {
    return std::find(inputs_.begin(), inputs_.end(), edge) != inputs_.end();
  }

  std::vector<Edge> inputs_;
  bool whole_;
  std::unordered_set<const Node*> leading_;
};

// Hooks in the order of registration; then the result is kept, if at all.
void run_hooks(Slot& slot, bool keep) {
  if (slot.leaf) return run_leaf_hooks(*slot.leaf, slot.grads[0]);
  Node& node = *slot.node;
  const size_t count = node.output_hooks ? node.output_hooks->size() : 0;
  for (size_t i = 0; i < count; ++i) {
    const Node::OutputHook& added = (*node.output_hooks)[i];
    Tensor& g = slot.grads[added.output];
    if (added.hook && g.defined()) run_hook(added.hook, g);
  }
  for (size_t i = 0; i < count && keep; ++i) {
    const Node::OutputHook& added = (*node.output_hooks)[i];
    const Tensor& g = slot.grads[added.output];
    if (added.retained_grad && g.defined()) added.retained_grad->add(node, g);
  }
}

void send(Pass& pass, Node& node, const SmallVector<bool, 8>& needed, Gradients gradients) {
  if (gradients.size() > node.edges.size()) {
    throw AutogradError(node.name(),
                        "at most " + std::to_string(node.edges.size()) +
                            " gradients from its backward, one for each input",
                        std::to_string(gradients.size()));
  }
  for (size_t i = 0; i < node.edges.size(); ++i) {
    if (!needed[i]) continue;
    if (i >= gradients.size() || !gradients[i].defined()) {
      throw AutogradError(node.name(),
                          "its backward gave no gradient for input " + std::to_string(i));
    }
    const Edge& edge = node.edges[i];
    if (edge.node) {
      const OutputMeta& meta = edge.node->outputs[edge.output];
      check_gradient(node, i, gradients[i], meta.shape, meta.dtype, meta.device);
    } else {
      const TensorImpl& leaf = *edge.leaf;
      check_gradient(node, i, gradients[i], leaf.shape, leaf.dtype, leaf.storage->device());
    }
    pass.deposit(edge, std::move(gradients[i]));
  }
}

void visit(Pass& pass, Slot& slot, const Selection* selection, bool retain) {
  Node& node = *slot.node;
  if (node.released()) {
    throw AutogradError(node.name(),
                        "what it saved was freed by an earlier backward pass; ask for "
                        "retain_graph in that one");
  }
  SmallVector<bool, 8> needed, last;
  const bool branches = Graph::recording() && !grad_enabled() && !anomaly_mode();
  for (const Edge& edge : node.edges) {
    needed.push_back(edge && (!selection || selection->wants(edge)));
    if (branches) last.push_back(needed.back() && pass.is_last(edge));
  }
  Backward context(node, {needed.begin(), needed.size()}, {last.begin(), last.size()});
  Gradients gradients = node.backward(context, {slot.grads.begin(), slot.grads.size()});
  if (anomaly_mode()) {
    detail::check_gradients(node, {slot.grads.begin(), slot.grads.size()},
                            {gradients.begin(), gradients.size()});
  }
  if (!retain) node.release_saved();
  slot.grads.clear();
  send(pass, node, needed, std::move(gradients));
}

// Visits everything below `roots`. With a selection, fills `found`, and leaves the leaves alone.
void run(std::span<const Tensor> roots, std::span<const Tensor> grads, BackwardOptions options,
         const Selection* selection, std::vector<Tensor>* found) {
  const GradModeGuard mode(options.create_graph);
  const bool retain = options.retain_graph || options.create_graph;
  if (AutocastGuard* const guard = detail::autocast_guard(); guard && !retain)
    guard->forget_casts();
  const NoAutocastGuard no_autocast;
  const PassLease lease;
  Pass& pass = *lease;
  if (!selection && grad_hooks_exist) pass.count_gradients(roots);
  const PassScope scope(selection ? nullptr : &pass);
  for (size_t i = 0; i < roots.size(); ++i) {
    const Edge edge = edge_of(roots[i]);
    if (!selection || selection->wants(edge)) pass.deposit(edge, grads[i]);
  }
  const auto finish = [&](Slot slot) {
    run_leaf_hooks(*slot.leaf, slot.grads[0]);
    if (slot.leaf->is_variable) {  // else frozen since its use
      add_to_leaf(*slot.leaf, std::move(slot.grads[0]));
      run_grad_hooks(*slot.leaf);
    }
  };
  while (!pass.empty()) {
    if (pass.at_leaves()) detail::join_branches();
    while (std::optional<Slot> complete = pass.pop_complete()) finish(std::move(*complete));
    Slot slot = pass.pop();
    if (slot.leaf && !selection) {
      if (!slot.grads.empty() && slot.grads[0].defined()) finish(std::move(slot));
      continue;  // else done before
    }
    if (!selection || selection->runs_hooks(slot)) run_hooks(slot, !selection);
    if (selection) selection->collect(slot, *found);
    if (slot.node && (!selection || selection->leads(*slot.node))) {
      visit(pass, slot, selection, retain);
    }
  }
  for (const std::function<void()>& f : pass.take_calls()) f();
}

Tensor root_gradient(const char* op, const Tensor& root, const Tensor& given) {
  if (!root.requires_grad()) {
    throw AutogradError(op, "a tensor that requires grad", "one without history");
  }
  if (given.defined()) {
    check_gradient_of(op, root, given);
    return given;
  }
  if (root.numel() != 1) {
    throw AutogradError(op, "a one-element tensor, or a gradient for it",
                        "shape " + to_string(root.shape()));
  }
  return ones_like(root);
}

std::vector<Tensor> root_gradients(const char* op, const std::vector<Tensor>& outputs,
                                   const std::vector<Tensor>& given) {
  if (!given.empty() && given.size() != outputs.size()) {
    throw ValueError(op, std::to_string(outputs.size()) + " output gradients",
                     std::to_string(given.size()));
  }
  std::vector<Tensor> seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    seeds.push_back(root_gradient(op, outputs[i], given.empty() ? Tensor() : given[i]));
  }
  return seeds;
}

}  // namespace

void detail::Pass::count_gradients(std::span<const Tensor> roots) {
  const auto count = [&](const Edge& edge) {
    if (edge.leaf && edge.leaf->grad_hooks) ++slots_[find_or_add(edge.leaf.get(), edge)].missing;
  };
  for (const Tensor& root : roots) count(edge_of(root));
  for (const Node* node : reachable({roots.begin(), roots.end()}, 0)) {
    for (const Edge& edge : node->edges) count(edge);
  }
}

void detail::add_into(const Tensor& sum, const Tensor& term) { accumulate(sum, term, sum); }

Tensor add_gradients(const Tensor& a, const Tensor& b) {
  const Tensor y = empty(a.shape(), a.options());
  accumulate(a, b, y);
  return record("add", {a, b}, y, [](Backward&, const Tensor& g) { return Gradients{g, g}; });
}

void Tensor::register_post_accumulate_grad_hook(std::function<void()> hook) {
  constexpr const char* op = "register_post_accumulate_grad_hook";
  if (!is_leaf() || !requires_grad()) {
    throw AutogradError(op, "a leaf that requires grad",
                        is_leaf() ? "one that does not" : "the result of an op");
  }
  if (!hook) throw ValueError(op, "a hook", "an empty function");
  auto& hooks = impl().grad_hooks;
  if (!hooks) hooks = std::make_unique<std::vector<std::function<void()>>>();
  hooks->push_back(std::move(hook));
  grad_hooks_exist = true;
}

void Tensor::backward(BackwardOptions options) const { backward(Tensor(), options); }

void Tensor::backward(const Tensor& gradient, BackwardOptions options) const {
  const Tensor g = root_gradient("backward", *this, gradient);
  run({this, 1}, {&g, 1}, options, nullptr, nullptr);
}

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs,
              BackwardOptions options) {
  run(outputs, root_gradients("backward", outputs, grad_outputs), options, nullptr, nullptr);
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, BackwardOptions options,
                         bool allow_unused) {
  const std::vector<Tensor> seeds = root_gradients("grad", outputs, grad_outputs);
  for (const Tensor& input : inputs) {
    if (!input.requires_grad()) {
      throw AutogradError("grad", "inputs that require grad", "one that does not");
    }
  }
  std::vector<Edge> edges;
  for (const Tensor& input : inputs) edges.push_back(edge_of(input));
  const Selection selection(outputs, std::move(edges));
  std::vector<Tensor> found(inputs.size());
  run(outputs, seeds, options, &selection, &found);
  for (size_t i = 0; i < found.size() && !allow_unused; ++i) {
    if (!found[i].defined()) {
      throw AutogradError("grad", "input " + std::to_string(i) +
                                      " was not used by the outputs (allow_unused permits it)");
    }
  }
  return found;
}

namespace detail {

void after_backward(std::function<void()> f) { running ? running->call_at_end(std::move(f)) : f(); }

std::vector<Edge> boundary(const std::vector<Tensor>& outputs, uint64_t first) {
  std::vector<Edge> found;
  const auto add = [&](const Edge& edge) {
    if (!edge || (edge.node && edge.node->sequence() >= first)) return;
    if (std::find(found.begin(), found.end(), edge) == found.end()) found.push_back(edge);
  };
  for (const Tensor& output : outputs) {
    if (output.requires_grad()) add(edge_of(output));
  }
  for (const Node* node : reachable(outputs, first)) {
    for (const Edge& edge : node->edges) add(edge);
  }
  return found;
}

std::vector<Tensor> gradients_at(std::span<const Edge> edges, const std::vector<Tensor>& outputs,
                                 const std::vector<Tensor>& grads, uint64_t first) {
  const Selection selection(outputs, {edges.begin(), edges.end()}, first);
  std::vector<Tensor> found(edges.size());
  run(outputs, grads, {}, &selection, &found);
  return found;
}

}  // namespace detail
}  // namespace sash
