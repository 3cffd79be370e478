// What a graph keeps track of beside the backend's recording: random numbers, gradients, and what
// is refused. tests/nn/test_captured_step.cpp replays graphs on a card.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <sash/nn/attention/rotary.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/dropout_state.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/autograd/recompute.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/graph.h>
#include <sash/tensor/random.h>

#include "../support/backends/forwarding_backend.h"
#include "../support/expect_error.h"

using namespace sash;
using testing::expect_error;

namespace {

// The CPU's backend with graphs: work that is recorded also runs, and a replay does nothing.
class Recorder final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void begin_capture(Device device, Stream stream) override {
    if (!enabled) inner_.begin_capture(device, stream);  // throws
    ++begun;
  }
  void set_current_stream(Device device, Stream stream) override {
    if (std::exchange(streams_fail, false))
      throw DeviceError("set_current_stream", "the device is gone");
    ForwardingBackend::set_current_stream(device, stream);
  }
  void* end_capture(Device, Stream) override {
    ++ended;
    if (fails) throw DeviceError("end_capture", "something else");
    return this;
  }
  void replay(void*, Device, Stream) override { ++replayed; }
  void destroy_graph(void*) override { ++destroyed; }
  void record_stream(void* memory, Device device, Stream stream) override {
    if (!enabled) return inner_.record_stream(memory, device, stream);
    used.push_back(memory);
  }

  int begun = 0, ended = 0, destroyed = 0;
  std::atomic<int> replayed{0};
  bool enabled = false, fails = false, streams_fail = false;
  std::vector<const void*> used{};  // what streams, or graphs, were said to use
};

// Lets the CPU record for a scope.
class Recording {
 public:
  Recording() {
    recorder_.begun = recorder_.ended = recorder_.destroyed = 0;
    recorder_.replayed = 0;
    recorder_.enabled = true;
  }
  ~Recording() { recorder_.enabled = recorder_.fails = recorder_.streams_fail = false; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  Recorder* operator->() const { return &recorder_; }

 private:
  Recorder& recorder_ = testing::in_front_of_cpu<Recorder>();
};

Tensor variable(double value) { return full({3}, value, {.device = kCPU, .requires_grad = true}); }

void backward_of(const Tensor& x) { (x * x).sum().backward(); }

}  // namespace

TEST_CASE("graph: random numbers are placed from the word of the graph on") {
  const Recording recorder;
  manual_seed(9);
  next_philox(kCPU, 40);
  {
    Graph graph(kCPU);
    CHECK(Graph::recording());
    const PhiloxState first = next_philox(kCPU, 5), second = next_philox(kCPU, 8);
    CHECK(first.offset == 0);
    CHECK(second.offset == 2);
    CHECK(first.base == second.base);
    graph.end();
    CHECK_FALSE(Graph::recording());
    CHECK(random_state() == RandomState{9, 10});
    graph.replay();
    CHECK(*first.base == 10);
    CHECK(random_state() == RandomState{9, 14});
    next_philox(kCPU, 4);
    graph.replay();
    CHECK(*first.base == 15);
    CHECK(random_state() == RandomState{9, 19});
    manual_seed(8);
    CHECK_FALSE(graph.fits());
    expect_error<ValueError>(
        "Graph.replay: expected leaves, gradients and seed as they were recorded, got others",
        [&] { graph.replay(); });
  }
  CHECK(recorder->replayed == 2);
  CHECK(recorder->destroyed == 1);
}

TEST_CASE("graph: gradients are before a replay as they were, and after it as recorded") {
  const Recording recorder;
  const Tensor fresh = variable(2), added = variable(3);
  Tensor dropped = variable(4);
  backward_of(added);
  backward_of(dropped);
  const Tensor before = added.grad(), kept = dropped.grad();
  Graph graph(kCPU);
  backward_of(fresh);
  backward_of(added);
  dropped.zero_grad();
  graph.end();
  CHECK_FALSE(fresh.grad().defined());
  CHECK(added.grad().is_same(before));
  CHECK(dropped.grad().is_same(kept));
  CHECK(graph.fits());
  graph.replay();
  CHECK(fresh.grad().to_vector<float>() == std::vector<float>(3, 4));
  CHECK(added.grad().is_same(before));
  CHECK_FALSE(dropped.grad().defined());
  // A call would now add to a gradient of `fresh`, which the graph does not.
  CHECK_FALSE(graph.fits());
  Tensor(fresh).zero_grad();
  CHECK(graph.fits());
  Tensor(added).set_grad(before.clone());
  CHECK_FALSE(graph.fits());
  Tensor(added).set_grad(before);
  CHECK(graph.fits());
  CHECK_FALSE(graph.outdated());
}

TEST_CASE("graph: angles that a longer text replaces are kept for replays") {
  const Recording recorder;
  recorder->used.clear();
  nn::RotaryTable table({}, 8);
  const auto angles_of = [&](int64_t length) {
    return table.angles(0, length, DType::float32, kCPU);
  };
  const RotaryAngles before = angles_of(100);
  CHECK(recorder->used.empty());
  Graph graph(kCPU);
  angles_of(100);
  graph.end();
  const std::vector<const void*> expected{before.cos.tensor_view().data,
                                          before.sin.tensor_view().data};
  CHECK(recorder->used == expected);
  angles_of(1000);
  CHECK(recorder->used == expected);
}

TEST_CASE("graph: an unfinished or failed recording is undone") {
  const Recording recorder;
  manual_seed(7);
  const Tensor x = variable(2);
  backward_of(x);
  const Tensor before = x.grad();
  {
    Graph graph(kCPU);
    Tensor(x).zero_grad();
    backward_of(x);
    next_philox(kCPU, 100);
  }
  CHECK(x.grad().is_same(before));
  CHECK(random_state() == RandomState{7, 0});
  CHECK(recorder->ended == 1);
  CHECK(recorder->destroyed == 1);
  recorder->fails = true;
  {
    Graph graph(kCPU);
    Tensor(x).zero_grad();
    next_philox(kCPU, 100);
    CHECK_THROWS_AS(graph.end(), DeviceError);
    CHECK_FALSE(graph.fits());
  }
  { Graph graph(kCPU); }
  CHECK(x.grad().is_same(before));
  CHECK(random_state() == RandomState{7, 0});
  CHECK(recorder->destroyed == 1);
  CHECK_FALSE(Graph::recording());
}

TEST_CASE("graph: what code on the host would have to repeat is refused") {
  const Recording recorder;
  manual_seed(7);
  Tensor x = variable(2);
  optim::SGD optimizer({x}, {.lr = 1, .momentum = 0.9});
  backward_of(x);
  Graph graph(kCPU);
  expect_error<ValueError>("Graph: expected no other graph that is being recorded, got one",
                           [] { Graph second(kCPU); });
  expect_error<ValueError>("manual_seed: expected no new seed while a graph is recorded, got one",
                           [] { manual_seed(1); });
  expect_error<ValueError>(
      "Optimizer.step: expected state from an earlier step while a graph is recorded, got none",
      [&] { optimizer.step(); });
  expect_error<ValueError>(
      "SGD.set_lr: expected rates set before the step while a graph is recorded, got one set in it",
      [&] { optimizer.set_lr(0.5); });
  Generator own(1), another(2);
  expect_error<ValueError>(
      "Generator: expected one from before while a graph is recorded, got one made meanwhile",
      [&] { seeded_dropout(x, 0.5, own); });
  CHECK(own.state() == RandomState{.seed = 1});
  expect_error<ValueError>("Generator: expected no new state while a graph is recorded, got one",
                           [&] { own = another; });
  expect_error<ValueError>(
      "set_random_state: expected no new state while a graph is recorded, got one", [] {
        set_random_state({7, 1});
      });
  CHECK_NOTHROW(next_philox(kCPU, 4));
  graph.end();
  CHECK(random_state() == RandomState{7, 0});
}

TEST_CASE("graph: what other threads draw while it is recorded stays drawn") {
  const Recording recorder;
  manual_seed(7);
  for (const bool finished : {true, false}) {
    const RandomState before = random_state();
    Graph graph(kCPU);
    next_philox(kCPU, 8);
    std::thread([] { next_philox(kCPU, 400); }).join();
    CHECK(next_philox(kCPU, 4).offset == 2);
    if (finished) graph.end();
    CHECK(random_state() == RandomState{7, before.offset + (finished ? 100 : 3)});
  }
  CHECK(random_state() == RandomState{7, 200});
}

TEST_CASE("graph: threads that replay at the same time get numbers of their own") {
  const Recording recorder;
  manual_seed(7);
  constexpr size_t kThreads = 3, kReplays = 20'000;
  std::vector<std::vector<uint64_t>> starts(kThreads);
  std::vector<std::unique_ptr<Graph>> graphs;
  std::vector<PhiloxState> places;
  for (size_t t = 0; t + 1 < kThreads; ++t) {
    graphs.push_back(std::make_unique<Graph>(kCPU));
    places.push_back(next_philox(kCPU, 8));
    graphs.back()->end();
  }
  std::atomic<size_t> ready{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const bool replays = t + 1 < kThreads;  // the last draws eagerly
      for (++ready; ready < kThreads;) std::this_thread::yield();
      for (size_t i = 0; i < kReplays; ++i) {
        if (replays) graphs[t]->replay();
        starts[t].push_back(replays ? *places[t].base : next_philox(kCPU, 8).offset);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (const std::vector<uint64_t>& own : starts) all.insert(own.begin(), own.end());
  CHECK(all.size() == kThreads * kReplays);
  CHECK(*all.begin() == 0);
  CHECK(*all.rbegin() == 2 * (kThreads * kReplays - 1));
}

TEST_CASE("graph: a generator of the caller's own is moved on by replays") {
  const Recording recorder;
  manual_seed(7);
  auto own = std::make_unique<Generator>(RandomState{5, 30});
  Generator second(6);
  Graph graph(kCPU);
  const PhiloxState first = own->next(kCPU, 8), other = second.next(kCPU, 4),
                    after = own->next(kCPU, 4), device = next_philox(kCPU, 4);
  CHECK(first.seed == 5);
  CHECK(first.offset == 0);
  CHECK(after.offset == 2);
  CHECK(after.base == first.base);
  CHECK(other.seed == 6);
  CHECK(other.base != first.base);
  CHECK(device.base != first.base);
  CHECK(own->state() == RandomState{5, 33});
  graph.end();
  CHECK(own->state() == RandomState{5, 30});
  CHECK(second.state() == RandomState{6, 0});
  graph.replay();
  CHECK(*first.base == 30);
  CHECK(own->state() == RandomState{5, 33});
  own->next(kCPU, 40);
  graph.replay();
  CHECK(*first.base == 43);
  CHECK(*other.base == 1);
  CHECK(*device.base == 1);
  CHECK(own->state() == RandomState{5, 46});
  CHECK(second.state() == RandomState{6, 2});
  CHECK(random_state() == RandomState{7, 2});
  own->set_state({5, 0});
  CHECK(graph.fits());
  *own = Generator(9);
  CHECK_FALSE(graph.fits());
  *own = Generator(5);
  CHECK(graph.fits());
  own.reset();
  CHECK_FALSE(graph.fits());
}

TEST_CASE("graph: it fits under the guard that it was recorded under") {
  const Recording recorder;
  manual_seed(7);
  Generator own(5), other(5);
  Graph plain(kCPU);
  const PhiloxState place = next_philox(kCPU, 4);
  plain.end();
  Graph drawless(kCPU);
  drawless.end();
  std::optional<GeneratorGuard> guard(std::in_place, own);
  CHECK_FALSE(plain.fits());
  CHECK(drawless.fits());
  Graph guarded(kCPU);
  const PhiloxState guarded_place = next_philox(kCPU, 4);
  guarded.end();
  CHECK(guarded.fits());
  guarded.replay();
  guarded.replay();
  CHECK(own.state() == RandomState{5, 2});
  CHECK(*guarded_place.base == 1);
  CHECK(random_state() == RandomState{7, 0});
  {
    const GeneratorGuard inner(other);
    CHECK_FALSE(guarded.fits());
  }
  CHECK(guarded.fits());
  guard.reset();
  CHECK_FALSE(guarded.fits());
  plain.replay();
  CHECK(random_state() == RandomState{7, 1});
  CHECK(*place.base == 0);
}

TEST_CASE("graph: a constructor that fails ends the recording") {
  const Recording recorder;
  recorder->streams_fail = true;
  CHECK_THROWS_AS(Graph{kCPU}, DeviceError);
  CHECK(recorder->begun == 1);
  CHECK(recorder->ended == 1);
  CHECK(recorder->destroyed == 1);
  CHECK_FALSE(Graph::recording());
  manual_seed(3);
  next_philox(kCPU, 4);
  CHECK(random_state() == RandomState{3, 1});
}

TEST_CASE("graph: a checkpoint's second run draws the same in a replay, or is refused") {
  const Recording recorder;
  manual_seed(7);
  Generator own(4);
  const Tensor x = variable(1);
  std::vector<PhiloxState> drawn;
  const auto fn = [&](const Tensor& a) {
    drawn.push_back(next_philox(kCPU, 8));
    drawn.push_back(own.next(kCPU, 8));
    return a * a;
  };
  Tensor outside;
  {
    Graph graph(kCPU);
    outside = checkpoint(fn, x);
    checkpoint(fn, x).sum().backward();
    graph.end();
  }
  REQUIRE(drawn.size() == 6);
  for (const size_t i : {size_t{2}, size_t{3}}) {
    CHECK(drawn[i].base == drawn[i + 2].base);
    CHECK(drawn[i].offset == drawn[i + 2].offset);
  }
  expect_error<AutogradError>(
      "checkpoint: expected a backward pass where the forward pass ran, got one in another graph",
      [&] { outside.sum().backward(); });
}

TEST_CASE("graph: a captured step falls back when its recording fails, and tries twice") {
  const Recording recorder;
  recorder->fails = true;
  const Tensor x = variable(2);
  optim::CapturedStep step(
      [&x](const std::vector<Tensor>& in) {
        Tensor(x).zero_grad();
        const Tensor loss = (x * in[0]).sum();
        loss.backward();
        return loss;
      },
      {.device = kCPU});
  for (int i = 1; i < 6; ++i) {
    CHECK(step({full({3}, i, {.device = kCPU})}).item<double>() == 6 * i);
    CHECK(x.grad().to_vector<double>() == std::vector<double>(3, i));
    CHECK(step.reason() == (i == 1 ? "the first call with these inputs runs eagerly"
                                   : "end_capture: something else"));
    CHECK(recorder->begun == std::min(i - 1, 2));
  }
  CHECK(step.captures() == 0);
}
