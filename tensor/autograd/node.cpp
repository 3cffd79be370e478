#include "node.h"

#include <algorithm>
#include <atomic>

#include "../tensor_impl.h"
#include "anomaly.h"

namespace sash {
namespace {

constinit std::atomic<uint64_t> next_number{2};

// Nodes to be deleted after the one that this thread is deleting. Plain data: graphs may outlive
// the thread's objects.
constinit thread_local Node* dead = nullptr;
constinit thread_local bool burying = false;

// The same tensor as the output of an op of its own.
Tensor alias(const Tensor& x) {
  return record("alias", {x}, x.detach(), [](Backward&, const Tensor& g) { return Gradients{g}; });
}

std::string describe_saved(const Tensor& t) {
  return std::string(name(t.dtype())) + " " + to_string(t.shape());
}

}  // namespace

Node::Node(const char* name) : name_(name) {}

Node::~Node() = default;

void Node::add_hook(OutputHook hook) {
  if (!output_hooks) output_hooks = std::make_unique<std::vector<OutputHook>>();
  output_hooks->push_back(std::move(hook));
}

void Node::dispose() {
  if (burying) {
    next_dead_ = std::exchange(dead, this);
    return;
  }
  burying = true;
  delete this;
  while (dead) {
    Node* node = dead;
    dead = node->next_dead_;
    delete node;
  }
  burying = false;
}

Saved save(const Tensor& input) {
  Saved saved;
  if (!input.defined()) return saved;
  TensorImpl& impl = input.impl();
  saved.version_ = impl.storage->version();
  // No write is recorded on a variable, so its history cannot change.
  if (impl.is_variable || !grad_enabled()) {
    saved.tensor_ = input;
  } else {
    saved.tensor_ = input.detach();
    if (const Ref<Node>& node = impl.grad_fn()) {
      saved.tensor_.impl().set_history(node, impl.output_index());
    }
  }
  return saved;
}

Saved save_output(const Tensor& output, int index) {
  // An alias without history: the node must not own the tensor that owns it.
  Saved saved;
  saved.tensor_ = output.detach();
  saved.version_ = output.impl().storage->version();
  saved.output_ = index;
  return saved;
}

bool Backward::are_last(std::initializer_list<size_t> inputs) const {
  if (last_.empty()) return false;
  const auto needed = [&](size_t i) { return needs(i); };
  const auto is_last = [&](size_t i) { return !needs(i) || last_[i]; };
  return std::any_of(inputs.begin(), inputs.end(), needed) &&
         std::all_of(inputs.begin(), inputs.end(), is_last);
}

Tensor Backward::operator()(const Saved& saved) const {
  if (!saved.tensor_.defined()) return {};
  const TensorImpl& impl = saved.tensor_.impl();
  if (impl.storage->version() != saved.version_) {
    throw AutogradError(node_.name(), "a saved tensor (" + describe_saved(saved.tensor_) +
                                          ") was overwritten in place between the forward and the "
                                          "backward pass: expected version " +
                                          std::to_string(saved.version_) + ", got " +
                                          std::to_string(impl.storage->version()));
  }
  if (saved.output_ < 0 || !grad_enabled()) return saved.tensor_;
  const Tensor output = saved.tensor_.detach();
  output.impl().set_history(Ref<Node>(&node_), static_cast<uint32_t>(saved.output_));
  return output;
}

namespace detail {
namespace {

// Numbered last: `edge_of` may replay a view, which takes a number.
void connect(Node& node, Inputs inputs) {
  for (const TensorRef& ref : inputs) {
    const Tensor& input = ref.get();
    Edge edge;
    if (input.defined() && input.requires_grad()) edge = edge_of(input);
    node.edges.push_back(std::move(edge));
  }
  node.set_sequence(next_number.fetch_add(2, std::memory_order_relaxed));
}

OutputMeta meta_of(const Tensor& output) {
  return {output.shape(), output.dtype(), output.device()};
}

void check_output(const Node& node, Inputs inputs, const Tensor& output) {
  bool given = output.requires_grad();
  for (const TensorRef& input : inputs) given = given || input.get().is_same(output);
  if (!given) return;
  throw AutogradError(node.name(),
                      "an output without history (compute it under NoGradGuard, or detach() it)",
                      "an input, or the output of another recorded op");
}

}  // namespace

Edge edge_of(const Tensor& tensor) {
  TensorImpl& impl = tensor.impl();
  if (const Ref<Node>& node = impl.grad_fn()) return {node, impl.output_index(), nullptr};
  return {nullptr, 0, tensor.impl_ref()};
}

uint64_t next_sequence() { return next_number.load(std::memory_order_relaxed); }

bool should_record(Inputs inputs) {
  if (!grad_enabled()) return false;
  for (const TensorRef& input : inputs) {
    if (input.get().defined() && input.get().requires_grad()) return true;
  }
  return false;
}

void attach(Ref<Node> node, Inputs inputs, std::span<Tensor> outputs) {
  for (const Tensor& output : outputs) check_output(*node, inputs, output);
  connect(*node, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    node->outputs.push_back(meta_of(outputs[i]));
    if (!is_floating(outputs[i].dtype())) continue;
    TensorImpl& impl = outputs[i].impl();
    if (impl.ignores_base()) impl.base = nullptr;  // its history is this op alone
    impl.set_history(node, static_cast<uint32_t>(i));
  }
  if (anomaly_mode()) note_recording(*node, inputs, outputs);
}

void attach_in_place(Ref<Node> node, Inputs inputs, Tensor& self) {
  connect(*node, inputs);
  node->outputs.push_back(meta_of(self));
  TensorImpl& impl = self.impl();
  impl.set_history(node, 0);
  if (impl.base && impl.base->use_count() == 1) impl.base = nullptr;  // nobody else sees it
  if (impl.base) {
    record_view_write(Tensor(impl.base), self);
    impl.sync_with_base();
  }
  if (anomaly_mode()) note_recording_in_place(*node, inputs, self);
}

void count_write(const Tensor& self) { self.impl().storage->bump_version(); }

}  // namespace detail

void check_in_place(const char* op, const Tensor& self, std::initializer_list<TensorRef> operands) {
  if (!grad_enabled()) return;
  const TensorImpl& impl = self.impl();
  const TensorImpl* base = impl.base.get();
  if (impl.is_variable || (base && base->is_variable)) {
    throw AutogradError(op, std::string(impl.is_variable ? "" : "a view of ") +
                                "a leaf that requires grad cannot be written in place while "
                                "recording; use NoGradGuard or write to a result of it");
  }
  bool in_graph = self.requires_grad() || (base && base->requires_grad());
  for (const TensorRef& operand : operands) {
    in_graph = in_graph || (operand.get().defined() && operand.get().requires_grad());
  }
  if (!in_graph || !is_floating(self.dtype())) return;
  if (impl.ignores_base() && base->use_count() > 1) {
    throw AutogradError(op,
                        "a view that was made while nothing was recorded cannot be written in a "
                        "graph: its base would miss the gradient; make the view again, or clone "
                        "it");
  }
  if (base && overlaps_itself(base->shape, base->strides)) {
    throw AutogradError(op,
                        "a view of an expanded tensor cannot be written in a graph: its elements "
                        "share memory with others; clone the expanded tensor first");
  }
  if (impl.was_variable || (base && base->was_variable)) {
    throw AutogradError(op,
                        "a tensor that was a leaf requiring grad cannot be written in a graph: "
                        "recorded ops may name it as their leaf; write to a clone of it");
  }
  if (anomaly_mode()) detail::note_old_elements(self);
}

Gradients differentiate(const std::function<Tensor(std::span<const Tensor>)>& composite,
                        std::span<const Tensor> inputs, const Tensor& g, const Backward& pass) {
  // Aliases: a tensor that is given twice has a gradient for each place, and hooks of the inputs
  // run in the outer pass alone.
  std::vector<Tensor> own(inputs.begin(), inputs.end()), wanted;
  const Tensor output = [&] {
    const EnableGradGuard recording;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!pass.needs(i)) continue;
      own[i] = alias(inputs[i]);
      wanted.push_back(own[i]);
    }
    return composite(own);
  }();
  const std::vector<Tensor> found = grad(
      {output}, wanted, {g}, {.retain_graph = true, .create_graph = pass.create_graph()}, true);
  Gradients gradients(inputs.size());
  for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (pass.needs(i)) gradients[i] = found[next++];
  }
  return gradients;
}

}  // namespace sash
