#include "node.h"

#include <atomic>

#include "anomaly.h"
#include "tensor_impl.h"

namespace sash {
namespace {

constinit std::atomic<uint64_t> next_sequence{1};

// Nodes whose last reference went while another node was being destroyed on this thread.
struct Graveyard {
  std::vector<Node*> waiting;
  bool busy = false;
};

Graveyard& graveyard() {
  thread_local Graveyard yard;
  return yard;
}

std::string describe(const Tensor& t) {
  return std::string(name(t.dtype())) + " " + to_string(t.shape());
}

}  // namespace

Node::Node(const char* name)
    : name_(name), sequence_(next_sequence.fetch_add(1, std::memory_order_relaxed)) {}

Node::~Node() = default;

void Node::dispose() {
  Graveyard& yard = graveyard();
  if (yard.busy) {
    yard.waiting.push_back(this);
    return;
  }
  yard.busy = true;
  delete this;
  while (!yard.waiting.empty()) {
    Node* node = yard.waiting.back();
    yard.waiting.pop_back();
    delete node;
  }
  yard.busy = false;
}

Saved save(const Tensor& input) {
  Saved saved;
  if (input.defined()) {
    saved.tensor_ = input;
    saved.version_ = input.impl().storage->version();
  }
  return saved;
}

Saved save_output(const Tensor& output, int index) {
  // An alias without history: the node must not own the tensor that owns it.
  Saved saved = save(output.detach());
  saved.output_ = index;
  return saved;
}

Tensor Backward::operator()(const Saved& saved) const {
  if (!saved.tensor_.defined()) return {};
  const TensorImpl& impl = saved.tensor_.impl();
  if (impl.storage->version() != saved.version_) {
    throw AutogradError(node_.name(), "a saved tensor (" + describe(saved.tensor_) +
                                          ") was overwritten in place between the forward and the "
                                          "backward pass: expected version " +
                                          std::to_string(saved.version_) + ", got " +
                                          std::to_string(impl.storage->version()));
  }
  if (saved.output_ < 0 || !grad_enabled()) return saved.tensor_;
  const Tensor output = saved.tensor_.detach();
  output.impl().grad_fn = Ref<Node>(&node_);
  output.impl().output_index = static_cast<uint32_t>(saved.output_);
  return output;
}

namespace detail {
namespace {

Edge edge_to(const char* op, const Tensor& input) {
  if (!input.defined() || !input.requires_grad()) return {};
  TensorImpl& impl = input.impl();
  if (impl.is_view && impl.grad_fn && impl.view_version != impl.storage->version() &&
      impl.base->requires_grad()) {
    throw AutogradError(op,
                        "an input is a view whose base was written in place after the view was "
                        "made, so its gradient would be wrong; make the view again");
  }
  if (impl.grad_fn) return {impl.grad_fn, impl.output_index, nullptr};
  return {nullptr, 0, input.impl_ref()};
}

OutputMeta meta_of(const Tensor& output) {
  return {output.shape(), output.dtype(), output.device()};
}

}  // namespace

bool should_record(Inputs inputs) {
  if (!grad_enabled()) return false;
  for (const TensorRef& input : inputs) {
    if (input.get().defined() && input.get().requires_grad()) return true;
  }
  return false;
}

void attach(Ref<Node> node, Inputs inputs, std::span<Tensor> outputs) {
  for (const TensorRef& input : inputs) node->edges.push_back(edge_to(node->name(), input.get()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    node->outputs.push_back(meta_of(outputs[i]));
    if (!is_floating(outputs[i].dtype())) continue;
    outputs[i].impl().grad_fn = node;
    outputs[i].impl().output_index = static_cast<uint32_t>(i);
  }
  if (anomaly_mode()) note_recording(*node, outputs);
}

void attach_in_place(Ref<Node> node, Inputs inputs, Tensor& self) {
  for (const TensorRef& input : inputs) node->edges.push_back(edge_to(node->name(), input.get()));
  node->outputs.push_back(meta_of(self));
  TensorImpl& impl = self.impl();
  impl.grad_fn = node;
  impl.output_index = 0;
  impl.view_version = impl.storage->version();
  if (anomaly_mode()) note_recording(*node, {&self, 1});
}

void count_write(const Tensor& self) { self.impl().storage->bump_version(); }

}  // namespace detail

void check_in_place(const char* op, const Tensor& self, std::initializer_list<TensorRef> operands) {
  if (!grad_enabled()) return;
  const TensorImpl& impl = self.impl();
  if (impl.is_variable && !impl.grad_fn) {
    throw AutogradError(op,
                        "a leaf that requires grad cannot be written in place while recording; "
                        "use NoGradGuard or write to a result of it");
  }
  if (!impl.is_view) return;
  bool in_graph = self.requires_grad() || impl.base->requires_grad();
  for (const TensorRef& operand : operands) {
    in_graph = in_graph || (operand.get().defined() && operand.get().requires_grad());
  }
  if (in_graph) {
    throw AutogradError(op,
                        "a view whose base or operand takes part in a graph cannot be written in "
                        "place: views are not rebased; write to the base, or clone the view");
  }
}

Gradients differentiate(const std::function<Tensor(std::span<const Tensor>)>& composite,
                        std::span<const Tensor> inputs, const Tensor& g, const Backward& pass) {
  const Tensor output = [&] {
    const EnableGradGuard recording;
    return composite(inputs);
  }();
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (pass.needs(i)) wanted.push_back(inputs[i]);
  }
  const std::vector<Tensor> found = grad(
      {output}, wanted, {g}, {.retain_graph = true, .create_graph = pass.create_graph()}, true);
  Gradients gradients(inputs.size());
  for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (pass.needs(i)) gradients[i] = found[next++];
  }
  return gradients;
}

}  // namespace sash
