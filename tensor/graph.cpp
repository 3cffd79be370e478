#include "graph.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <vector>

#include "../core/backend/backend.h"
#include "../core/backend/kernel.h"
#include "factories.h"
#include "kernels/memory.h"
#include "random.h"
#include "stream.h"
#include "tensor_impl.h"

namespace sash {
namespace {

constinit thread_local detail::GraphState* current = nullptr;
constinit std::atomic<uint64_t> epoch{0};  // moves on when tensors are replaced

// Branches that later work is beside: more keep more memory, and are no faster.
constexpr size_t kMostBranches = 2;

// A leaf whose gradient the recorded call used.
struct Leaf {
  Ref<TensorImpl> leaf;
  Ref<Storage> memory;
  bool reads;            // its gradient, before replacing it
  Tensor before, after;  // its gradient when recording began and ended

  bool moved() const { return !(leaf->storage == memory); }
  bool fits() const {
    if (!reads) return true;
    if (!before.defined() || !leaf->grad.defined()) return leaf->grad.defined() == before.defined();
    const TensorImpl &now = leaf->grad.impl(), &then = before.impl();
    return now.storage == then.storage && now.offset == then.offset;
  }
};

// Of work that other work waits for.
class RecordedEvent {
 public:
  RecordedEvent(Device device, Stream stream)
      : device_(device), event_(backend(device.type).create_event(device)) {
    backend(device.type).record(event_, device, stream);
  }
  ~RecordedEvent() {
    try {
      backend(device_.type).destroy_event(device_, event_);
    } catch (const Error&) {  // the device is gone
    }
  }
  RecordedEvent(const RecordedEvent&) = delete;
  RecordedEvent& operator=(const RecordedEvent&) = delete;

  void make_wait(Stream stream) const { backend(device_.type).wait(event_, device_, stream); }

 private:
  Device device_;
  Event event_;
};

// A branch that the recording's own stream does not wait for yet.
struct Branch {
  std::unique_ptr<RecordedEvent> done;
  std::vector<Tensor> kept;
};

// A stream of the recording's own. On the one that threads share, work of another thread would be
// recorded too.
class RecordingStream {
 public:
  explicit RecordingStream(Device device)
      : device_(device), stream_(backend(device.type).create_stream(device)) {}
  ~RecordingStream() {
    try {
      backend(device_.type).destroy_stream(device_, stream_);
    } catch (const Error&) {  // the device is gone
    }
  }
  RecordingStream(const RecordingStream&) = delete;
  RecordingStream& operator=(const RecordingStream&) = delete;

  Stream get() const { return stream_; }
  void make_current() const { backend(device_.type).set_current_stream(device_, stream_); }

 private:
  Device device_;
  Stream stream_;
};

}  // namespace

struct detail::GraphState {
  Device device;
  std::unique_ptr<RecordingStream> stream{}, side{};  // `side` is for branches
  Stream former{};                                    // current before the recording
  std::deque<Branch> branches{};
  void* handle = nullptr;
  RandomState start{};
  uint64_t drawn = 0;  // blocks of random numbers in a replay
  Tensor word{};       // int64, `PhiloxState::base` of the recorded kernels
  std::vector<Leaf> leaves{};
  std::vector<std::function<void()>> before{}, after{};
  uint64_t known_epoch = epoch.load();

  Backend& owner() const { return backend(device.type); }
  // All branches but the last `left`.
  void join(size_t left) {
    for (; branches.size() > left; branches.pop_front()) {
      branches.front().done->make_wait(stream->get());
    }
  }
  void end_capture() {
    owner().set_current_stream(device, former);
    const std::unique_ptr<RecordingStream> on = std::move(stream), beside = std::move(side);
    branches.clear();
    handle = owner().end_capture(device, on->get());
  }
};

Graph::Graph(Device device)
    : state_(std::make_unique<detail::GraphState>(detail::GraphState{.device = device})) {
  if (current) throw ValueError("Graph", "no other graph that is being recorded", "one");
  state_->word = zeros({}, {.dtype = DType::int64, .device = device});
  state_->start = random_state();
  state_->stream = std::make_unique<RecordingStream>(device);
  state_->owner().begin_capture(device, state_->stream->get());
  state_->former = state_->owner().current_stream(device);
  state_->stream->make_current();
  current = state_.get();
}

Graph::~Graph() {
  detail::GraphState& s = *state_;
  try {
    if (current == &s) {
      undo();
      s.end_capture();
    }
    if (s.handle) s.owner().destroy_graph(s.handle);
  } catch (const Error&) {  // nothing was recorded, or the device is gone
  }
}

void Graph::undo() noexcept {
  current = nullptr;
  set_random_state(state_->start);
  for (Leaf& leaf : state_->leaves) leaf.leaf->grad = leaf.before;
}

void Graph::end() {
  detail::GraphState& s = *state_;
  if (current != &s) throw ValueError("Graph.end", "the graph that is being recorded", "another");
  const RandomState last = random_state();
  s.join(0);
  for (Leaf& leaf : s.leaves) leaf.after = leaf.leaf->grad;
  undo();
  s.end_capture();
  if (last.seed != s.start.seed || last.offset < s.start.offset) {
    throw ValueError("Graph.end", "a generator that only moved on", "one that was set");
  }
  s.drawn = last.offset - s.start.offset;
  for (Leaf& leaf : s.leaves) {
    if (!leaf.reads) leaf.before = Tensor();
  }
}

bool Graph::outdated() const {
  const std::vector<Leaf>& leaves = state_->leaves;
  return state_->known_epoch != epoch.load() ||
         std::any_of(leaves.begin(), leaves.end(), [](const Leaf& leaf) { return leaf.moved(); });
}

bool Graph::fits() const {
  const detail::GraphState& s = *state_;
  if (!s.handle || outdated()) return false;
  if (s.drawn > 0 && random_state().seed != s.start.seed) return false;
  return std::all_of(s.leaves.begin(), s.leaves.end(),
                     [](const Leaf& leaf) { return leaf.fits(); });
}

void Graph::replay() {
  if (!fits()) {
    throw ValueError("Graph.replay", "leaves, gradients and seed as they were recorded", "others");
  }
  detail::GraphState& s = *state_;
  for (const auto& call : s.before) call();
  KernelContext context = kernel_context(s.device);
  if (s.drawn > 0) {
    RandomState next = random_state();
    kernels::fill(context, s.word.tensor_view(), static_cast<int64_t>(next.offset));
    next.offset += s.drawn;
    set_random_state(next);
  }
  s.owner().replay(s.handle, s.device, context.stream);
  for (Leaf& leaf : s.leaves) {
    leaf.leaf->grad = leaf.after;
    leaf.memory->bump_version();
    if (leaf.after.defined()) leaf.after.impl().storage->bump_version();
  }
  for (const auto& call : s.after) call();
}

bool Graph::recording() { return current != nullptr; }

namespace detail {

void note_gradient(TensorImpl& leaf, bool reads) {
  if (!current || leaf.grad_fn()) return;
  const auto known = [&](const Leaf& noted) { return noted.leaf.get() == &leaf; };
  std::vector<Leaf>& leaves = current->leaves;
  if (std::any_of(leaves.begin(), leaves.end(), known)) return;
  leaves.push_back({Ref<TensorImpl>(&leaf), leaf.storage, reads, leaf.grad, {}});
}

PhiloxState place_in_graph(Device device, PhiloxState state) {
  if (!current || current->device != device) return state;
  const RandomState& start = current->start;
  if (state.seed != start.seed || state.offset < start.offset) {
    refuse_in_graph("random numbers", "those that come next", "others");
  }
  return {state.seed, current->word.tensor_view().ptr<uint64_t>(), state.offset - start.offset};
}

void refuse_in_graph(std::string_view op, const char* expected, const char* got) {
  if (!current) return;
  throw ValueError(op, std::string(expected) + " while a graph is recorded", got);
}

void on_replay(std::function<void()> before, std::function<void()> after) {
  if (!current) return;
  current->before.push_back(std::move(before));
  current->after.push_back(std::move(after));
}

void keep_for_replays(const Tensor& x) {
  if (!current || current->device != x.device()) return;
  record_stream(x, current->owner().current_stream(current->device));
}

void outdate_graphs() { epoch.fetch_add(1); }

GraphBranch::GraphBranch(Device device)
    : graph_(current && current->device == device ? current : nullptr) {
  if (!graph_) return;
  if (!graph_->side) graph_->side = std::make_unique<RecordingStream>(device);
  RecordedEvent(device, graph_->stream->get()).make_wait(graph_->side->get());
  graph_->side->make_current();
}

void GraphBranch::keep(const Tensor& x) {
  if (graph_ && x.defined()) kept_.push_back(x);
}

void GraphBranch::end() {
  if (!graph_) return;
  graph_->branches.push_back(
      {std::make_unique<RecordedEvent>(graph_->device, graph_->side->get()), std::move(kept_)});
  graph_->stream->make_current();  // where older branches' memory is freed
  graph_->join(kMostBranches);
}

GraphBranch::~GraphBranch() {
  if (graph_) graph_->stream->make_current();
}

void join_branches() {
  if (current) current->join(0);
}

}  // namespace detail
}  // namespace sash
