// Threads that share a card, or have a card each: recordings, replays and random numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/scopes.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;
using optim::CapturedStep;

namespace {

using Tensors = std::vector<Tensor>;

// Runs the calls at the same time, each in a thread, and throws what one threw.
void together(const std::vector<std::function<void()>>& calls) {
  std::atomic<size_t> ready{0};
  std::vector<std::exception_ptr> errors(calls.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < calls.size(); ++i) {
    threads.emplace_back([&, i] {
      for (++ready; ready < calls.size();) std::this_thread::yield();
      try {
        calls[i]();
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// A thread that calls `call` again and again while the object lives.
class Noise {
 public:
  explicit Noise(std::function<void()> call)
      : thread_([this, call] {
          while (!stop_) {
            try {
              call();
              ++calls_;
            } catch (...) {
              error_ = std::current_exception();
              return;
            }
          }
        }) {}
  ~Noise() { stop(); }
  Noise(const Noise&) = delete;
  Noise& operator=(const Noise&) = delete;

  // Waits until the call was made `more` times more.
  void wait_for(int more) const {
    for (const int from = calls_; calls_ < from + more && !error_;) std::this_thread::yield();
  }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // What the call threw.
  std::exception_ptr error() const { return error_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> calls_{0};
  std::exception_ptr error_;
  std::thread thread_;
};

// A model with dropout that is trained on a card; results are its losses and weights.
std::vector<float> train(Device device, bool capture, int steps, Generator* own = nullptr) {
  std::optional<GeneratorGuard> guard;
  Generator init(7);
  std::optional<GeneratorGuard> drawing(std::in_place, init);
  nn::CausalLM model = small_lm({.vocab = 13, .dim = 32, .dropout = 0.3});
  model.to(device);
  drawing.reset();
  if (own) guard.emplace(*own);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  CapturedStep step(
      [&](const Tensors& in) {
        optimizer.zero_grad();
        const Tensor loss = cross_entropy(model(in[0]), in[0]);
        loss.backward();
        optimizer.step();
        return loss;
      },
      {.device = device, .capture = capture});
  std::vector<float> all;
  for (int i = 0; i < steps; ++i) {
    const Tensor tokens = arange(0, 64, 1, {.dtype = DType::int64, .device = kCPU});
    std::vector<int64_t> ids;
    for (const int64_t t : tokens.to_vector<int64_t>()) ids.push_back((t * (i + 3)) % 13);
    all.push_back(step({tensor(ids, {4, 16}, {.device = kCPU})}).item<float>());
    if (capture && i > 0) CHECK_MESSAGE(step.reason() == "", step.reason());
  }
  for (const Tensor& p : model.parameters()) {
    const std::vector<float> part = p.to_vector<float>();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

constexpr Device kSecond{DeviceType::cuda, 1};

}  // namespace

TEST_CASE("cuda threads: one that waits, trims, allocates and draws does not end recordings") {
  if (missing(kCUDA)) return;
  const int steps = short_tests() ? 4 : 40;
  manual_seed(5);
  const std::vector<float> alone = train(kCUDA, true, steps);
  const RandomState after = random_state(kCUDA);
  for (const bool draws : {false, true}) {
    CAPTURE(draws);
    Generator own(RandomState{5, 0});
    manual_seed(5);
    Noise noise([draws] {
      const TensorOptions on{.dtype = DType::float32, .device = kCUDA};
      synchronize(kCUDA);
      const Tensor x = draws ? rand({1 << 20}, on) : full({1 << 20}, 0.5, on);
      const Tensor pinned = pin_memory(ones({5000}, {.device = kCPU})), y = pinned.to(kCUDA);
      empty_cache(kCUDA);
      const double mean = x.mean().item<double>();
      if (!(mean > 0.49 && mean < 0.51)) throw ValueError("noise", "a mean of 0.5", "another");
      set_cache_limit(kCUDA, 0);
      synchronize(kCUDA);
      set_cache_limit(kCUDA, kNoCacheLimit);
    });
    noise.wait_for(2);
    // Where the other thread draws too, this one needs numbers of its own to have the same bits.
    const std::vector<float> found = train(kCUDA, true, steps, draws ? &own : nullptr);
    for (int i = 0; i < (short_tests() ? 3 : 30); ++i) {
      Graph graph(kCUDA);
      const Tensor x = full({1000}, i, {.dtype = DType::float32, .device = kCUDA}), y = x + x;
      noise.wait_for(1);
      graph.end();
      graph.replay();
      CHECK(all_equal(y, 2 * i));
    }
    noise.stop();
    if (noise.error()) std::rethrow_exception(noise.error());
    CHECK(found == alone);
    if (!draws) CHECK(random_state(kCUDA) == after);
    if (draws) CHECK(own.state() == after);
  }
}

TEST_CASE("cuda threads: waiting for the card within a recording is refused, beside it it waits") {
  if (missing(kCUDA)) return;
  Tensor work = empty({int64_t{64} << 20}, {.dtype = DType::float32, .device = kCUDA});
  Graph graph(kCUDA);
  const Tensor x = ones({100}, {.dtype = DType::float32, .device = kCUDA}), y = x + x;
  expect_error<DeviceError>("synchronize: expected no wait for cuda:0 during a capture, got one",
                            [] { synchronize(kCUDA); });
  std::thread([&] {
    Backend& cuda = backend(DeviceType::cuda);
    const SideStream side;
    for (int i = 0; i < 100; ++i) work.fill_(i);
    const Event done = cuda.create_event(kCUDA), start = cuda.create_event(kCUDA);
    cuda.record(start, kCUDA, side.get());
    work.fill_(7);
    cuda.record(done, kCUDA, side.get());
    synchronize(kCUDA);
    CHECK(cuda.elapsed_ms(start, done, kCUDA) >= 0);
    cuda.destroy_event(kCUDA, start);
    cuda.destroy_event(kCUDA, done);
  }).join();
  graph.end();
  graph.replay();
  CHECK(all_equal(y, 2));
  CHECK(all_equal(work, 7));
}

TEST_CASE("cuda threads: replays and eager calls at the same time have masks of their own") {
  if (missing(kCUDA)) return;
  const int rounds = short_tests() ? 10 : 300;
  const Tensor x = ones({256}, {.dtype = DType::float32, .device = kCUDA});
  synchronize(kCUDA);
  std::vector<std::set<std::vector<float>>> masks(3);
  const auto draw = [&](size_t t) {
    const SideStream stream;
    CapturedStep step([&](const Tensors& in) { return dropout(in[0], 0.5); },
                      {.device = kCUDA, .capture = t < 2});
    for (int i = 0; i < rounds; ++i) masks[t].insert(step({x}).to_vector<float>());
    CHECK((t == 2 || step.captures() == 1));
  };
  manual_seed(4);
  together({[&] { draw(0); }, [&] { draw(1); }, [&] { draw(2); }});
  std::set<std::vector<float>> all;
  for (const auto& own : masks) {
    CHECK(own.size() == static_cast<size_t>(rounds));
    all.insert(own.begin(), own.end());
  }
  CHECK(all.size() == 3 * static_cast<size_t>(rounds));
  // They are the masks that one thread would draw.
  CHECK(random_state(kCUDA) == RandomState{4, 64 * 3 * static_cast<uint64_t>(rounds)});
  manual_seed(4);
  for (int i = 0; i < 3 * rounds; ++i) CHECK(all.contains(dropout(x, 0.5).to_vector<float>()));
}

TEST_CASE("cuda threads: two that train on one card with generators of their own have their bits") {
  if (missing(kCUDA)) return;
  const int steps = short_tests() ? 4 : 20;
  for (const bool capture : {false, true}) {
    CAPTURE(capture);
    std::vector<float> alone[2], found[2];
    for (uint64_t i = 0; i < 2; ++i) {
      Generator own(i);
      alone[i] = train(kCUDA, capture, steps, &own);
    }
    const auto run = [&](uint64_t i) {
      const SideStream stream;
      Generator own(i);
      found[i] = train(kCUDA, capture, steps, &own);
    };
    together({[&] { run(0); }, [&] { run(1); }});
    for (const int i : {0, 1}) CHECK(found[i] == alone[i]);
    CHECK(alone[0] != alone[1]);
  }
}

TEST_CASE("cuda threads: one for each card has the bits that it has alone") {
  if (missing(kCUDA, 2)) return;
  const int steps = short_tests() ? 4 : 40;
  for (const bool capture : {false, true}) {
    CAPTURE(capture);
    std::vector<float> alone[2], found[2];
    for (const int i : {0, 1}) {
      manual_seed(6);
      alone[i] = train({DeviceType::cuda, i}, capture, steps);
    }
    manual_seed(6);
    together({[&] { found[0] = train(kCUDA, capture, steps); },
              [&] { found[1] = train(kSecond, capture, steps); }});
    for (const int i : {0, 1}) CHECK(found[i] == alone[i]);
    CHECK(alone[0] == alone[1]);  // each card starts from the seed
  }
}

TEST_CASE("cuda threads: checkpoint on two cards repeats the draws of each") {
  if (missing(kCUDA, 2)) return;
  const Tensor x = ones({64}, {.dtype = DType::float32, .device = kCUDA}).requires_grad_();
  manual_seed(3);
  const auto fn = [](const Tensor& a) {
    const Tensor there = dropout(dropout(a, 0.2).to(kSecond), 0.2);
    return dropout(there.to(kCUDA), 0.2);
  };
  const Tensor y = checkpoint(fn, x);
  const RandomStates before = random_states();
  y.sum().backward();
  CHECK(largest_difference(x.grad(), y.detach()) < 1e-6);
  CHECK(random_states() == before);
  CHECK(random_state(kCUDA) == RandomState{3, 32});
  CHECK(random_state(kSecond) == RandomState{3, 16});
}
