// Several threads at once, for the thread sanitizer above all: the thread pool's own, and a user's.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <sash/core/parallel.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/attention/attention.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/adam.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

using namespace sash;

namespace {

constexpr int kThreads = 4;

struct FourThreads {
  int before = num_threads();
  FourThreads() { set_num_threads(kThreads); }
  ~FourThreads() { set_num_threads(before); }
};

// Runs `work(t)` on four threads that start together.
void together(const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (++ready; ready < kThreads;) std::this_thread::yield();
      work(t);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

TEST_CASE("threads: the pieces of a job run on several") {
  const FourThreads four;
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::vector<int> runs(64);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto others_came = [&] {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
    return ids.size() == kThreads || std::chrono::steady_clock::now() > deadline;
  };
  parallel_for(64, 1, [&](int64_t begin, int64_t) {
    ++runs[static_cast<size_t>(begin)];
    while (!others_came()) std::this_thread::yield();
  });
  CHECK(ids.size() == kThreads);
  CHECK(runs == std::vector<int>(64, 1));
}

TEST_CASE("threads: jobs after gaps, on changing numbers of threads") {
  const FourThreads four;
  // From no gap at all to one in which the workers fall asleep.
  for (const int gap_us : {0, 50, 500, 2000}) {
    for (int round = 0; round < 60; ++round) {
      set_num_threads(1 + round % 6);
      std::vector<int> runs(static_cast<size_t>(1 + round % 17));
      parallel_for(static_cast<int64_t>(runs.size()), 1,
                   [&](int64_t begin, int64_t) { ++runs[static_cast<size_t>(begin)]; });
      REQUIRE(runs == std::vector<int>(runs.size(), 1));
      if (gap_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(gap_us));
    }
  }
}

TEST_CASE("threads: what a piece throws reaches the caller, and the thread pool goes on") {
  const FourThreads four;
  for (int round = 0; round < 50; ++round) {
    CHECK_THROWS_AS(parallel_for(64, 1,
                                 [](int64_t begin, int64_t) {
                                   if (begin % 7 == 3) throw std::runtime_error("piece");
                                 }),
                    std::runtime_error);
    std::atomic<int64_t> sum{0};
    parallel_for(64, 1, [&](int64_t begin, int64_t) { sum += begin; });
    CHECK(sum == 64 * 63 / 2);
  }
}

TEST_CASE("threads: each trains a model of its own, with the bits of one thread") {
  const FourThreads four;
  const Tensor x = randn({96, 64});
  const Tensor w0 = randn({64, 128});
  const auto train = [&] {
    const Tensor w = w0.clone().requires_grad_();
    optim::AdamW optimizer({w}, {.lr = 1e-2});
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      tanh(matmul(x, w)).mean().backward();
      optimizer.step();
    }
    return w.detach().to_vector<float>();
  };
  const std::vector<float> expected = train();
  std::vector<std::vector<float>> got(kThreads);
  together([&](int t) { got[static_cast<size_t>(t)] = train(); });
  for (const auto& weights : got) CHECK(weights == expected);
}

TEST_CASE("threads: one model, one mask and its compiled maps serve all") {
  const FourThreads four;
  nn::CausalLM model({.vocab = 11, .context = 96, .dim = 32, .heads = 2, .layers = 2});
  model.eval();
  const Tensor ids = randint(0, 11, {2, 96});
  const Tensor q = randn({1, 2, 200, 16}), k = randn({1, 2, 200, 16}), v = randn({1, 2, 200, 16});
  const auto run = [&](const AttentionMask& mask) {
    const NoGradGuard no_grad;
    std::vector<float> all = model(ids).to_vector<float>();
    const std::vector<float> o = attention(q, k, v, {.mask = mask}).to_vector<float>();
    all.insert(all.end(), o.begin(), o.end());
    return all;
  };
  for (int64_t round = 0; round < 5; ++round) {
    // Its maps are compiled by whoever comes first.
    const AttentionMask mask = AttentionMask::causal_window(37 + round) | AttentionMask::sinks(3);
    std::vector<std::vector<float>> got(kThreads);
    together([&](int t) { got[static_cast<size_t>(t)] = run(mask); });
    const std::vector<float> expected = run(mask);
    for (const auto& values : got) CHECK(values == expected);
  }
}

TEST_CASE("threads: backward passes through one weight add up") {
  const FourThreads four;
  const Tensor w = full({64, 64}, 0.5, {.dtype = DType::float64, .requires_grad = true});
  const Tensor x = ones({64, 64}, {.dtype = DType::float64});
  together([&](int) {
    for (int i = 0; i < 10; ++i) matmul(x, w).sum().backward();
  });
  CHECK(w.grad().to_vector<double>() == std::vector<double>(64 * 64, 64.0 * 10 * kThreads));
}
