#include "graph.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "../core/backend/backend.h"
#include "../core/backend/kernel.h"
#include "draws.h"
#include "factories.h"
#include "kernels/memory.h"
#include "stream.h"
#include "tensor_impl.h"

namespace sash {
namespace {

constinit thread_local detail::GraphState* current = nullptr;
constinit std::atomic<uint64_t> epoch{0};  // moves on when tensors are replaced
constinit std::atomic<uint64_t> recordings{0};

constexpr size_t kMostGenerators = 7;  // of the caller's own, in a graph

// Branches that may be open while later work runs: with more, memory grows and steps are no faster.
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

// Records a stream until it ends; then the stream that was current before is so again.
class Capture {
 public:
  Capture(Device device, Stream stream)
      : device_(device), stream_(stream), former_(backend(device.type).current_stream(device)) {
    backend(device_.type).begin_capture(device_, stream_);
  }
  ~Capture() {
    try {
      if (!ended_) backend(device_.type).destroy_graph(end());
    } catch (const std::exception&) {  // nothing was recorded, or the device is gone
    }
  }

  void* end() {
    ended_ = true;
    backend(device_.type).set_current_stream(device_, former_);
    return backend(device_.type).end_capture(device_, stream_);
  }

 private:
  Device device_;
  Stream stream_, former_;
  bool ended_ = false;
};

// A generator of the caller's own that the recorded call drew from.
struct OwnDraws {
  std::weak_ptr<detail::GeneratorState> generator;
  RandomState start;
  uint64_t drawn = 0;  // blocks of random numbers in a replay
};

}  // namespace

struct detail::GraphState {
  Device device;
  const uint64_t number = recordings.fetch_add(1) + 1;
  std::unique_ptr<RecordingStream> stream{}, side{};  // `side` is for branches
  std::unique_ptr<Capture> capture{};
  std::deque<Branch> branches{};
  BranchCounts counts{};
  void* handle = nullptr;
  RandomStates start = random_states();
  // What the recording draws from; replays take numbers from the generators of the process.
  std::unique_ptr<OwnGenerators> generators{};
  std::vector<std::pair<Device, uint64_t>> drawn{};  // blocks of random numbers in a replay
  const GeneratorState* guard = guarded_generator();
  std::vector<OwnDraws> own_draws{};
  // int64 words, `PhiloxState::base` of draws: first of the device's generator, then one for each
  // generator of the caller's.
  std::vector<Tensor> words{};
  std::vector<Leaf> leaves{};
  std::vector<std::function<void()>> before{}, after{};
  uint64_t known_epoch = epoch.load();

  Backend& owner() const { return backend(device.type); }
  // All branches but the last `left`.
  void join(size_t left) {
    for (; branches.size() > left; branches.pop_front()) {
      branches.front().done->make_wait(stream->get());
      ++counts.joined;
    }
  }
  void end_capture() {
    const std::unique_ptr<RecordingStream> on = std::move(stream), beside = std::move(side);
    const std::unique_ptr<Capture> last = std::move(capture);
    branches.clear();
    handle = last->end();
  }
  bool draws_fit() const;
  void place_numbers(KernelContext& context);
};

// Whether a call would draw where the graph does.
bool detail::GraphState::draws_fit() const {
  if (!drawn.empty() && guarded_generator()) return false;
  for (const auto& [on, blocks] : drawn) {
    if (on == device && thread_generators().state(on).seed != start.of(on).seed) return false;
  }
  return std::all_of(own_draws.begin(), own_draws.end(), [&](const OwnDraws& own) {
    const std::shared_ptr<GeneratorState> generator = own.generator.lock();
    if (!generator || generator->state.seed != own.start.seed) return false;
    return generator.get() != guard || guard == guarded_generator();
  });
}

// Reserves the random numbers of a replay.
void detail::GraphState::place_numbers(KernelContext& context) {
  const auto place = [&](size_t word, RandomState state) {
    kernels::fill(context, words[word].tensor_view(), static_cast<int64_t>(state.offset));
  };
  for (const auto& [on, blocks] : drawn) {
    if (on != device) {
      thread_generators().reserve(on, blocks);
      continue;
    }
    const std::optional<RandomState> first =
        thread_generators().reserve(on, blocks, start.of(on).seed);
    if (!first) throw ValueError("Graph.replay", "the seed that was recorded", "a new one");
    place(0, *first);
  }
  for (size_t i = 0; i < own_draws.size(); ++i) {
    RandomState& state = own_draws[i].generator.lock()->state;
    place(i + 1, state);
    state.offset += own_draws[i].drawn;
  }
}

Graph::Graph(Device device) {
  if (current) throw ValueError("Graph", "no other graph that is being recorded", "one");
  state_ = std::make_unique<detail::GraphState>(detail::GraphState{.device = device});
  detail::GraphState& s = *state_;
  for (size_t i = 0; i <= kMostGenerators; ++i) {
    s.words.push_back(zeros({}, {.dtype = DType::int64, .device = device}));
  }
  s.generators = std::make_unique<detail::OwnGenerators>(s.start);
  s.stream = std::make_unique<RecordingStream>(device);
  s.capture = std::make_unique<Capture>(device, s.stream->get());
  s.stream->make_current();
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
  state_->generators.reset();
  for (const OwnDraws& own : state_->own_draws) {
    if (const auto generator = own.generator.lock()) generator->state = own.start;
  }
  for (Leaf& leaf : state_->leaves) leaf.leaf->grad = leaf.before;
}

void Graph::end() {
  detail::GraphState& s = *state_;
  if (current != &s) throw ValueError("Graph.end", "the graph that is being recorded", "another");
  s.join(0);
  for (const auto& [on, last] : s.generators->states().devices) {
    const uint64_t blocks = last.offset - s.start.of(on).offset;
    if (blocks > 0) s.drawn.emplace_back(on, blocks);
  }
  for (OwnDraws& own : s.own_draws) {
    if (const auto generator = own.generator.lock()) {
      own.drawn = generator->state.offset - own.start.offset;
    }
  }
  for (Leaf& leaf : s.leaves) leaf.after = leaf.leaf->grad;
  undo();
  s.end_capture();
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
  if (!s.handle || outdated() || !s.draws_fit()) return false;
  return std::all_of(s.leaves.begin(), s.leaves.end(),
                     [](const Leaf& leaf) { return leaf.fits(); });
}

void Graph::replay() {
  if (!fits()) {
    throw ValueError("Graph.replay", "leaves, gradients and seed as they were recorded", "others");
  }
  detail::GraphState& s = *state_;
  KernelContext context = kernel_context(s.device);
  s.place_numbers(context);
  for (const auto& call : s.before) call();
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

uint64_t recording_number() { return current ? current->number : 0; }

void note_generator(const std::shared_ptr<GeneratorState>& generator) {
  if (!current) return;
  if (generator->recording == current->number) {
    refuse_in_graph("Generator", "one from before", "one made meanwhile");
  }
  std::vector<OwnDraws>& all = current->own_draws;
  for (const OwnDraws& own : all) {
    if (own.generator.lock() == generator) return;
  }
  if (all.size() == kMostGenerators) refuse_in_graph("Generator", "at most seven", "another");
  all.push_back({generator, generator->state});
}

PhiloxState place_in_graph(Device device, const uint64_t* base, const Draw& draw) {
  const auto [seed, offset] = draw.state;
  if (!current || current->device != device) return {seed, base, offset};
  size_t word = 0;
  RandomState start = current->start.of(device);
  for (size_t i = 0; draw.generator && word == 0 && i < current->own_draws.size(); ++i) {
    const OwnDraws& own = current->own_draws[i];
    if (own.generator.lock().get() != draw.generator) continue;
    word = i + 1;
    start = own.start;
  }
  if (seed != start.seed || offset < start.offset || (draw.generator && word == 0)) {
    refuse_in_graph("random numbers", "those that come next", "others");
  }
  return {seed, current->words[word].tensor_view().ptr<uint64_t>(), offset - start.offset};
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
  ++graph_->counts.begun;
  graph_->branches.push_back(
      {std::make_unique<RecordedEvent>(graph_->device, graph_->side->get()), std::move(kept_)});
  graph_->stream->make_current();  // where older branches' memory is freed
  graph_->join(kMostBranches);
}

GraphBranch::~GraphBranch() {
  if (graph_) graph_->stream->make_current();
}

BranchCounts branch_counts() { return current ? current->counts : BranchCounts{}; }

void join_branches() {
  if (current) current->join(0);
}

}  // namespace detail
}  // namespace sash
