#include "captured_step.h"

#include <algorithm>
#include <exception>

#include "../core/backend/backend.h"
#include "../core/backend/kernel.h"
#include "../core/error.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/copy.h"
#include "../tensor/factories.h"
#include "../tensor/graph.h"

namespace sash::optim {
namespace {

constexpr const char* kCaptured = "CapturedStep";
constexpr size_t kMostSignatures = 8, kMostGraphs = 4;
constexpr int kMostFailures = 2;

using Tensors = std::vector<Tensor>;

// What a graph takes for given, beside what it looks after itself.
struct Signature {
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  bool tf32 = tf32_allowed(), recorded = grad_enabled();
  friend bool operator==(const Signature&, const Signature&) = default;
};

struct Recorded {
  std::unique_ptr<Graph> graph;
  Tensors results;
};

struct Recordings {
  Signature signature;
  Tensors inputs{};  // that the graphs read
  std::vector<Recorded> graphs{};
  int failures = 0;
  std::string failure{};
};

Tensors detached(const Tensors& tensors) {
  Tensors all;
  for (const Tensor& x : tensors) all.push_back(x.defined() ? x.detach() : x);
  return all;
}

Tensors copies(const Tensors& tensors) {
  const NoGradGuard no_grad;
  Tensors all;
  for (const Tensor& x : tensors) all.push_back(x.defined() ? x.clone() : x);
  return all;
}

template <class State>
State& here(const Owned<State>& state) {
  if (!state) throw ValueError(kCaptured, "a step", "one that was moved from");
  return *state;
}

Signature signature_of(const Tensors& inputs) {
  Signature signature;
  for (const Tensor& x : inputs) {
    signature.shapes.push_back(x.shape());
    signature.dtypes.push_back(x.dtype());
  }
  return signature;
}

}  // namespace

struct CapturedStep::State {
  Function fn;
  Device device;
  bool capture = true;
  std::vector<Recordings> recordings{};
  int64_t captures = 0;
  std::string reason{};
  Tensors results{};

  void call(const Tensors& given);

 private:
  Tensors on_device(const Tensors& given) const;
  const char* obstacle(const Tensors& inputs) const;
  bool run_recorded(const Tensors& inputs);
  void run_eagerly(const Tensors& inputs);
  bool replay(Recordings& all, const Tensors& inputs);
  void record(Recordings& all);
};

Tensors CapturedStep::State::on_device(const Tensors& given) const {
  Tensors inputs;
  for (const Tensor& x : given) {
    if (!x.defined()) throw ValueError(kCaptured, "defined inputs", "an undefined tensor");
    inputs.push_back(x.contiguous().to(device));
  }
  return inputs;
}

// Why no call with `inputs` can be recorded; null if nothing is known.
const char* CapturedStep::State::obstacle(const Tensors& inputs) const {
  if (!capture) return "capture is false";
  if (Graph::recording()) return "it is part of another graph";
  if (KernelObserver::installed()) return "kernels are being profiled";
  const bool grad =
      std::any_of(inputs.begin(), inputs.end(), [](const Tensor& x) { return x.requires_grad(); });
  return grad ? "an input requires grad" : nullptr;
}

void CapturedStep::State::record(Recordings& all) {
  std::erase_if(all.graphs, [](const Recorded& one) { return one.graph->outdated(); });
  if (all.graphs.size() == kMostGraphs) {
    throw ValueError(kCaptured, "the same seed, guard and memory of gradients in every call",
                     "others in " + std::to_string(kMostGraphs) + " calls");
  }
  if (all.graphs.empty()) empty_cache(device);  // the graph has memory of its own
  auto graph = std::make_unique<Graph>(device);
  const Tensors made = detached(fn(all.inputs));
  graph->end();
  all.graphs.push_back({std::move(graph), made});
  ++captures;
}

// Whether `all` has, or now got, a graph that did the call.
bool CapturedStep::State::replay(Recordings& all, const Tensors& inputs) {
  const auto fits = [](const Recorded& one) { return one.graph->fits(); };
  auto found = std::find_if(all.graphs.begin(), all.graphs.end(), fits);
  if (found == all.graphs.end() && all.failures == kMostFailures) {
    reason = all.failure;
    return false;
  }
  if (all.inputs.empty()) {
    Tensors made;  // all or none: memory may run out
    for (const Tensor& x : inputs) made.push_back(empty_like(x));
    all.inputs = std::move(made);
  }
  for (size_t i = 0; i < inputs.size(); ++i) copy_elements(inputs[i], all.inputs[i]);
  if (found == all.graphs.end()) {
    try {
      record(all);
    } catch (const std::exception& error) {
      ++all.failures;
      reason = all.failure = error.what();
      return false;
    }
    found = std::prev(all.graphs.end());
  }
  found->graph->replay();
  results = copies(found->results);
  reason.clear();
  return true;
}

// Whether the call is done; if not, `reason` says why it must run eagerly.
bool CapturedStep::State::run_recorded(const Tensors& inputs) {
  const Signature signature = signature_of(inputs);
  const auto known = std::find_if(recordings.begin(), recordings.end(), [&](const Recordings& one) {
    return one.signature == signature;
  });
  if (known != recordings.end()) return replay(*known, inputs);
  if (recordings.size() == kMostSignatures) {
    reason = "inputs of " + std::to_string(kMostSignatures) + " other kinds are recorded";
    return false;
  }
  run_eagerly(inputs);
  recordings.push_back({.signature = signature});
  reason = "the first call with these inputs runs eagerly";
  return true;
}

void CapturedStep::State::run_eagerly(const Tensors& inputs) {
  results = copies(fn(inputs));
  if (results.empty())
    throw ValueError(kCaptured, "a function that returns the loss", "no tensors");
}

void CapturedStep::State::call(const Tensors& given) {
  results.clear();
  const Tensors inputs = on_device(given);
  if (const char* const found = obstacle(inputs)) {
    reason = found;
  } else if (run_recorded(inputs)) {
    return;
  }
  run_eagerly(inputs);
}

CapturedStep::CapturedStep(Function fn, const CapturedStepOptions& options)
    : state_(std::make_unique<State>(State{.fn = std::move(fn),
                                           .device = options.device.value_or(default_device()),
                                           .capture = options.capture})) {
  if (!state_->fn) throw ValueError(kCaptured, "a function", "an empty one");
}

CapturedStep::CapturedStep(std::function<Tensor(const Tensors&)> fn,
                           const CapturedStepOptions& options)
    : CapturedStep(
          fn ? Function([fn](const Tensors& inputs) { return Tensors{fn(inputs)}; }) : Function(),
          options) {}

CapturedStep::~CapturedStep() = default;
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;

Tensor CapturedStep::operator()(const Tensors& inputs) {
  State& state = here(state_);
  state.call(inputs);
  return state.results[0];
}

const Tensors& CapturedStep::results() const { return here(state_).results; }
const std::string& CapturedStep::reason() const { return here(state_).reason; }
int64_t CapturedStep::captures() const { return here(state_).captures; }
void CapturedStep::reset() { here(state_).recordings.clear(); }

}  // namespace sash::optim
