#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "../../core/small_vector.h"
#include "../graph.h"
#include "../tensor.h"
#include "grad_mode.h"

/// The tape. An op computes its output, then says how to differentiate it:
///
///     Tensor exp(const Tensor& x) {
///       Tensor y = ...;
///       return record("exp", {x}, y, [y = save_output(y)](Backward& pass, const Tensor& g) {
///         return Gradients{g * pass(y)};
///       });
///     }
namespace sash {

class RetainedGrad;

/// One gradient per input; undefined where the input needs none.
using Gradients = SmallVector<Tensor, 3>;

/// A tensor kept for the backward pass, with the version of its memory. It keeps the history that
/// the tensor has now. After a later in-place write the history could lead back to the op that
/// saved it, a cycle.
class SASH_API Saved {
 public:
  Saved() = default;

 private:
  friend class Backward;
  friend SASH_API Saved save(const Tensor& input);
  friend SASH_API Saved save_output(const Tensor& output, int index);

  Tensor tensor_;
  uint32_t version_ = 0;
  int output_ = -1;
};

/// Keeps an input (or nothing, if it is undefined).
SASH_API Saved save(const Tensor& input);
/// Keeps an input if the backward pass will ask for it; unpacking it otherwise is a bug.
inline Saved save_if(bool needed, const Tensor& input) { return needed ? save(input) : Saved(); }
/// Keeps output number `index` of the op being recorded, without a reference cycle.
SASH_API Saved save_output(const Tensor& output, int index = 0);

/// A reference to an input, for argument lists.
class TensorRef {
 public:
  TensorRef(const Tensor& tensor) : tensor_(&tensor) {}
  const Tensor& get() const { return *tensor_; }

 private:
  const Tensor* tensor_;
};

/// Questions that a backward closure may ask while it runs.
class SASH_API Backward {
 public:
  /// Of each input: whether its gradient is needed, and whether the pass reads it only at its end;
  /// `last` is empty if nobody asks for that.
  Backward(Node& node, std::span<const bool> needed, std::span<const bool> last = {})
      : node_(node), needed_(needed), last_(last) {}

  /// Whether input `i` wants a gradient.
  bool needs(size_t i) const { return i < needed_.size() && needed_[i]; }
  /// Whether this pass is itself recorded, for second derivatives.
  bool create_graph() const { return grad_enabled(); }
  /// The saved tensor; `AutogradError` naming the op if its memory was written since.
  Tensor operator()(const Saved& saved) const;

  /// Calls `compute()`, which reads `reads` and sets the needed gradients `d` of `inputs`. While a
  /// graph is recorded, this work may run on another stream if nothing later in the pass reads
  /// these gradients, such as those of parameters.
  template <class F>
  void beside(Gradients& d, std::initializer_list<size_t> inputs,
              std::initializer_list<TensorRef> reads, F compute) const;

 private:
  /// Whether the pass reads no gradient of `inputs` before its end.
  bool are_last(std::initializer_list<size_t> inputs) const;

  Node& node_;
  std::span<const bool> needed_, last_;
};

template <class F>
void Backward::beside(Gradients& d, std::initializer_list<size_t> inputs,
                      std::initializer_list<TensorRef> reads, F compute) const {
  if (!are_last(inputs)) return compute();
  detail::GraphBranch branch(reads.begin()->get().device());
  compute();
  for (const size_t i : inputs) branch.keep(d[i]);
  for (const TensorRef& x : reads) branch.keep(x.get());
  branch.end();
}

/// Where the gradient of an input goes: an output of another node, or a leaf.
struct Edge {
  Ref<Node> node;
  uint32_t output = 0;
  Ref<TensorImpl> leaf;

  explicit operator bool() const { return node || leaf; }
  friend bool operator==(const Edge& a, const Edge& b) {
    return a.node == b.node && a.output == b.output && a.leaf == b.leaf;
  }
};

/// What a gradient for an output must look like.
struct OutputMeta {
  Shape shape;
  DType dtype = DType::float32;
  Device device;
};

/// A recorded op. Owned by the tensors it made, and by the nodes that consumed those.
class SASH_API Node : public RefCounted {
 public:
  explicit Node(const char* name);
  ~Node() override;

  const char* name() const { return name_; }
  /// Later ops have higher numbers, from one counter for the process. It counts by two: a replayed
  /// view gets the number after its base's.
  uint64_t sequence() const { return sequence_; }
  void set_sequence(uint64_t sequence) { sequence_ = sequence; }
  /// Whether a pass dropped what the closure had saved.
  bool released() const { return released_; }

  /// Gradients of the inputs from those of the outputs (undefined where nothing arrived). Must not
  /// write to `grads` in place: other nodes may share their memory.
  virtual Gradients backward(Backward& pass, std::span<const Tensor> grads) = 0;
  /// Drops what the closure saved, if anything.
  virtual void release_saved() = 0;

  SmallVector<Edge, 3> edges;
  SmallVector<OutputMeta, 1> outputs;
  /// Runs on the total gradient of an output: the user's hook, or the addition that `retain_grad`
  /// asked for.
  struct OutputHook {
    uint32_t output;
    TensorHook hook;
    Ref<RetainedGrad> retained_grad;
  };
  void add_hook(OutputHook hook);
  Owned<std::vector<OutputHook>> output_hooks;
  /// Where the op was recorded; filled in anomaly mode only.
  Owned<std::string> recorded_at;

 protected:
  /// Chains of nodes are destroyed one by one, not recursively.
  void dispose() override;
  bool released_ = false;

 private:
  const char* name_;
  uint64_t sequence_ = 0;
  Node* next_dead_ = nullptr;
};

/// The inputs of a recorded op, in the order of its gradients.
using Inputs = std::span<const TensorRef>;

namespace detail {

SASH_API void count_write(const Tensor& self);
/// The op that made `tensor`, or the leaf that it is.
SASH_API Edge edge_of(const Tensor& tensor);
/// Whether recording is on and some input requires grad.
SASH_API bool should_record(Inputs inputs);
/// Fills in edges and output metadata and makes `outputs` products of `node`.
SASH_API void attach(Ref<Node> node, Inputs inputs, std::span<Tensor> outputs);
/// The same for an op that replaced the elements of `self`, its first input.
SASH_API void attach_in_place(Ref<Node> node, Inputs inputs, Tensor& self);

/// The number that the next op gets.
SASH_API uint64_t next_sequence();
/// Where gradients leave the part of the graph that was recorded from number `first` on.
SASH_API std::vector<Edge> boundary(const std::vector<Tensor>& outputs, uint64_t first);
/// Their gradients: one for each of `edges`, undefined where none arrived. Older ops are not
/// visited, no hook runs, and no tensor's `grad()` changes.
SASH_API std::vector<Tensor> gradients_at(std::span<const Edge> edges,
                                          const std::vector<Tensor>& outputs,
                                          const std::vector<Tensor>& grads, uint64_t first);

template <class F>
class ClosureNode final : public Node {
 public:
  ClosureNode(const char* name, F closure) : Node(name), closure_(std::move(closure)) {}

  Gradients backward(Backward& pass, std::span<const Tensor> grads) override {
    if constexpr (std::is_invocable_v<F&, Backward&, const Tensor&>) {
      return (*closure_)(pass, grads[0]);
    } else {
      return (*closure_)(pass, grads);
    }
  }

  void release_saved() override {
    // A closure that holds numbers only stays, and the op can be visited again.
    if constexpr (!std::is_trivially_destructible_v<F>) {
      released_ = true;
      closure_.reset();
    }
  }

 private:
  std::optional<F> closure_;
};

template <class F>
Ref<Node> make_node(const char* name, F&& closure) {
  return Ref<Node>(new ClosureNode<std::decay_t<F>>(name, std::forward<F>(closure)));
}

inline Inputs as_inputs(const std::initializer_list<TensorRef>& inputs) {
  return {inputs.begin(), inputs.size()};
}

}  // namespace detail

/// Records that `op` made `output` from `inputs`, if recording is on and an input requires grad.
/// `backward(pass, grad)` returns one gradient per input, of the input's shape and dtype. It may
/// return `grad` itself, but must not write to it: other branches may share its memory.
/// `op` must be a string literal. Non-floating inputs never require grad. `AutogradError` if
/// `output` is an input or has a history already: compute it under `NoGradGuard`, or `detach()` it.
template <class F>
Tensor record(const char* op, std::initializer_list<TensorRef> inputs, Tensor output, F backward) {
  const Inputs in = detail::as_inputs(inputs);
  if (detail::should_record(in)) {
    detail::attach(detail::make_node(op, std::move(backward)), in, {&output, 1});
  }
  return output;
}

/// The same for any number of inputs.
template <class F>
Tensor record(const char* op, std::span<const Tensor> inputs, Tensor output, F backward) {
  const SmallVector<TensorRef, 8> in = [&] {
    SmallVector<TensorRef, 8> refs;
    for (const Tensor& input : inputs) refs.push_back(input);
    return refs;
  }();
  if (detail::should_record({in.begin(), in.size()})) {
    detail::attach(detail::make_node(op, std::move(backward)), {in.begin(), in.size()},
                   {&output, 1});
  }
  return output;
}

/// The same for several outputs; `backward(pass, std::span<const Tensor> grads)`.
template <class F>
void record(const char* op, std::initializer_list<TensorRef> inputs, std::span<Tensor> outputs,
            F backward) {
  const Inputs in = detail::as_inputs(inputs);
  if (detail::should_record(in)) {
    detail::attach(detail::make_node(op, std::move(backward)), in, outputs);
  }
}

/// To be called before an in-place op writes: while recording is on, `AutogradError` on a leaf that
/// requires grad or a view of one, and, if a graph is involved, on a view that was made while
/// nothing was recorded, for its base would miss the gradient.
SASH_API void check_in_place(const char* op, const Tensor& self,
                             std::initializer_list<TensorRef> operands = {});

/// Counts a write to `self`'s memory, and records that `op` replaced the elements of `inputs[0]`,
/// which must be `self`. Its backward is written from the output: the old elements are gone. If
/// `self` is a view, its base and the base's other views take on the new history too.
template <class F>
void record_in_place(const char* op, Tensor& self, std::initializer_list<TensorRef> inputs,
                     F backward) {
  detail::count_write(self);
  const Inputs in = detail::as_inputs(inputs);
  if (detail::should_record(in)) {
    detail::attach_in_place(detail::make_node(op, std::move(backward)), in, self);
  }
}

/// Gradients of `composite(inputs)`, contracted with `g`, as recorded ops: how a fused op gets its
/// second derivative. `inputs` are the saved tensors in the order of the op's inputs; undefined
/// ones are passed through.
SASH_API Gradients
differentiate(const std::function<Tensor(std::span<const Tensor> inputs)>& composite,
              std::span<const Tensor> inputs, const Tensor& g, const Backward& pass);

}  // namespace sash
