#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../graph.h"
#include "../tensor_impl.h"
#include "gradient_memory.h"

namespace sash::detail {

/// sum += term, by a kernel.
void add_into(const Tensor& sum, const Tensor& term);

// The gradients that have arrived for one node's outputs, or for a leaf.
struct Slot {
  const void* key = nullptr;
  Ref<Node> node;
  Ref<TensorImpl> leaf;
  SmallVector<Tensor, 1> grads;
  size_t missing = 0;  // gradients that a leaf with hooks still waits for
};

// One backward pass. Consumers of a tensor were recorded after it, so visiting nodes from the
// highest sequence number down finds every gradient complete. Objects are reused, with their
// memory, by later passes of the thread; a pass inside a pass takes another object.
class Pass {
 public:
  void deposit(const Edge& edge, Tensor g) {
    const void* key = edge.node ? static_cast<const void*>(edge.node.get())
                                : static_cast<const void*>(edge.leaf.get());
    const size_t at = find_or_add(key, edge);
    add(slots_[at].grads[edge.output], std::move(g));
    if (slots_[at].missing > 0 && --slots_[at].missing == 0) {
      complete_.push_back({at, detail::branch_counts().begun});
    }
  }

  // Counts the gradients that each leaf with `grad_hooks` below `roots` will get, so that the pass
  // knows when the leaf's gradient is complete.
  void count_gradients(std::span<const Tensor> roots);

  // A leaf with `grad_hooks` whose gradient is complete and in the order of the stream.
  std::optional<Slot> pop_complete() {
    if (complete_.empty() || complete_.front().branches > detail::branch_counts().joined) return {};
    Slot& slot = slots_[complete_.front().slot];
    complete_.pop_front();
    Slot done{slot.key, {}, slot.leaf, std::move(slot.grads), 0};
    slot.grads.clear();
    return done;
  }

  // Whether all nodes are done.
  bool at_leaves() const { return heap_.front().sequence == 0; }

  void call_at_end(std::function<void()> f) { at_end_.push_back(std::move(f)); }
  std::vector<std::function<void()>> take_calls() { return std::exchange(at_end_, {}); }

  bool empty() const { return heap_.empty(); }

  // Whether nothing reads a gradient for this input before the pass has done all nodes.
  bool is_last(const Edge& edge) {
    return edge.leaf && !edge.leaf->hooks &&
           !slots_[find_or_add(edge.leaf.get(), edge)].grads[0].defined();
  }

  // The slot of the latest unvisited node; leaves come last, in the order they were reached.
  Slot pop() {
    std::pop_heap(heap_.begin(), heap_.end());
    const size_t at = heap_.back().slot;
    heap_.pop_back();
    return std::move(slots_[at]);
  }

  void clear() {
    slots_.clear();
    heap_.clear();
    complete_.clear();
    at_end_.clear();
    std::fill(table_.begin(), table_.end(), 0u);
  }

 private:
  struct Entry {
    uint64_t sequence;
    uint32_t slot;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.sequence != b.sequence ? a.sequence < b.sequence : a.slot > b.slot;
    }
  };

  // A leaf whose gradient is complete, once `branches` branches of the recording are joined.
  struct Complete {
    size_t slot;
    uint64_t branches;
  };

  static void add(Tensor& sum, Tensor g) {
    if (!sum.defined()) {
      sum = std::move(g);
      return;
    }
    detail::join_branches();
    if (grad_enabled()) {
      sum = add_gradients(sum, g);
    } else if (owns_alone(sum)) {
      add_into(sum, g);
    } else if (owns_alone(g)) {
      add_into(g, sum);
      sum = std::move(g);
    } else {
      sum = add_gradients(sum, g);
    }
  }

  // Open addressing; the table holds slot numbers plus one.
  size_t find_or_add(const void* key, const Edge& edge) {
    if (2 * (slots_.size() + 1) > table_.size()) grow();
    size_t at = position(key);
    while (table_[at] != 0) {
      if (slots_[table_[at] - 1].key == key) return table_[at] - 1;
      at = (at + 1) & (table_.size() - 1);
    }
    const size_t outputs = edge.node ? edge.node->outputs.size() : 1;
    Slot slot{key, edge.node, edge.leaf, {}, 0};
    slot.grads.resize(outputs);
    slots_.push_back(std::move(slot));
    table_[at] = static_cast<uint32_t>(slots_.size());
    heap_.push_back({edge.node ? edge.node->sequence() : 0, table_[at] - 1});
    std::push_heap(heap_.begin(), heap_.end());
    return slots_.size() - 1;
  }

  void grow() {
    table_.assign(std::max<size_t>(256, 2 * table_.size()), 0u);
    for (size_t i = 0; i < slots_.size(); ++i) {
      size_t at = position(slots_[i].key);
      while (table_[at] != 0) at = (at + 1) & (table_.size() - 1);
      table_[at] = static_cast<uint32_t>(i + 1);
    }
  }

  size_t position(const void* key) const {
    return (reinterpret_cast<uintptr_t>(key) * uint64_t{0x9E3779B97F4A7C15} >> 20) &
           (table_.size() - 1);
  }

  std::vector<Slot> slots_;
  std::deque<Complete> complete_;
  std::vector<std::function<void()>> at_end_;
  std::vector<Entry> heap_;
  std::vector<uint32_t> table_;
};

// One idle pass per nesting level. `current` outlives the thread's objects: a pass may run in the
// destructor of one of them.
struct IdlePasses {
  std::vector<std::unique_ptr<Pass>> passes;
  IdlePasses() { current = this; }
  ~IdlePasses() { current = nullptr; }
  static constinit inline thread_local IdlePasses* current = nullptr;
};

// A pass of the thread, for a scope.
class PassLease {
 public:
  PassLease() {
    thread_local IdlePasses own;
    IdlePasses* idle = IdlePasses::current;
    if (idle && !idle->passes.empty()) {
      pass_ = std::move(idle->passes.back());
      idle->passes.pop_back();
    } else {
      pass_ = std::make_unique<Pass>();
    }
  }
  ~PassLease() {
    pass_->clear();
    if (IdlePasses* idle = IdlePasses::current) idle->passes.push_back(std::move(pass_));
  }
  PassLease(const PassLease&) = delete;
  PassLease& operator=(const PassLease&) = delete;
  Pass& operator*() const { return *pass_; }

 private:
  std::unique_ptr<Pass> pass_;
};

}  // namespace sash::detail
