// What a graph keeps track of beside the backend's recording: random numbers, gradients, and what
// is refused. tests/nn/test_captured_step.cpp replays graphs on a card.
#include <doctest/doctest.h>

#include <vector>

#include <sash/nn/attention/rotary.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/dropout_state.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/graph.h>
#include <sash/tensor/random.h>

#include "../support/expect_error.h"
#include "../support/forwarding_backend.h"

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

  int begun = 0, ended = 0, replayed = 0, destroyed = 0;
  bool enabled = false, fails = false;
  std::vector<const void*> used{};  // what streams, or graphs, were said to use
};

// Lets the CPU record for a scope.
class Recording {
 public:
  Recording() {
    recorder_.begun = recorder_.ended = recorder_.replayed = recorder_.destroyed = 0;
    recorder_.enabled = true;
  }
  ~Recording() { recorder_.enabled = recorder_.fails = false; }
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
  Generator own(1);
  expect_error<ValueError>(
      "Generator: expected the generator of manual_seed while a graph is recorded, got one of the "
      "caller's",
      [&] { seeded_dropout(x, 0.5, own); });
  CHECK(own.state() == RandomState{.seed = 1});
  set_random_state({7, 1});
  set_random_state({7, 0});
  CHECK_NOTHROW(next_philox(kCPU, 4));
  set_random_state({8, 0});
  CHECK_THROWS_AS(next_philox(kCPU, 4), ValueError);
  CHECK_THROWS_AS(graph.end(), ValueError);
  CHECK(random_state() == RandomState{7, 0});
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
    CHECK(step.reason() == (i == 1 ? "the first call with these inputs sets things up"
                                   : "end_capture: something else"));
    CHECK(recorder->begun == std::min(i - 1, 2));
  }
  CHECK(step.captures() == 0);
}
