// Several threads at once, for the thread sanitizer above all: the thread pool's own, and a user's.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <sash/core/backend/kernel.h>
#include <sash/core/parallel.h>
#include <sash/core/small_vector.h>
#include <sash/nn/attention/rotary.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/optim/adam.h>
#include <sash/sash.h>
#include <sash/tensor/tensor_impl.h>

#include "../support/small_models.h"

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

// Waits for what another thread does; false if it is late beyond doubt.
bool comes(const std::function<bool()>& happened) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!happened()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// The threads that run 64 pieces, each of which waits until there are `expected`.
size_t threads_of_a_job(
    size_t expected, const std::function<void()>& begun = [] {}) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<bool> late{false};
  parallel_for(64, 1, [&](int64_t, int64_t) {
    begun();
    const auto all_came = [&] {
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
      return late || ids.size() >= expected;
    };
    if (!comes(all_came)) late = true;
  });
  return ids.size();
}

// An op with as many elements as several threads share; inputs are uniform in [0, 1).
struct SplitOp {
  const char* name;
  std::vector<Shape> shapes;
  std::function<Tensor(const std::vector<Tensor>&)> run;
};

Tensor classes(const Tensor& x, double count) { return (x.detach() * count).to(DType::int64); }

std::vector<SplitOp> split_ops() {
  const Shape lines{128, 500};
  return {
      {"conv2d", {{2, 8, 40, 40}, {8, 8, 3, 3}}, [](const auto& t) { return conv2d(t[0], t[1]); }},
      {"conv2d of many filters",
       {{9, 8, 20, 20}, {33, 8, 3, 3}},
       [](const auto& t) { return conv2d(t[0], t[1]); }},
      {"nonzero", {lines}, [](const auto& t) { return nonzero(t[0].detach() > 0.5); }},
      {"sparse products",
       {{1, 4, 128, 32}, {1, 2, 64, 32}, {1, 4, 128, 16}},
       [](const auto& t) {
         const Tensor keys = classes(t[2], 64);
         return sparse_weighted_average(sparse_dot_product(t[0], t[1], keys), t[1], keys);
       }},
      {"topk", {lines}, [](const auto& t) { return topk(t[0], 7).values; }},
      {"sort", {lines}, [](const auto& t) { return sort(t[0]).values; }},
      {"median", {lines}, [](const auto& t) { return median(t[0], 1).values; }},
      {"argmax", {lines}, [](const auto& t) { return argmax(t[0], 1); }},
      {"cumsum", {lines}, [](const auto& t) { return cumsum(t[0], 1); }},
      {"variance of lines", {lines}, [](const auto& t) { return var(t[0], {1}); }},
      {"variance of columns", {lines}, [](const auto& t) { return var(t[0], {0}); }},
      {"amax", {lines}, [](const auto& t) { return amax(t[0], {0}) + amax(t[0]); }},
      {"any", {lines}, [](const auto& t) { return any(t[0] > 0.5, {1}); }},
      {"losses",
       {lines, lines},
       [](const auto& t) {
         return cross_entropy(t[0], classes(t[1], 500).select(1, 0)) + mse_loss(t[0], t[1]);
       }},
      {"rows",
       {lines, {500}, {500}},
       [](const auto& t) {
         const Tensor y = rms_norm(layer_norm(t[0], {500}, t[1], t[2]), {500}, t[1]);
         return softmax(y) + log_softmax(y);
       }},
      {"gather",
       {{500, 128}, {500, 128}},
       [](const auto& t) {
         const Tensor rows = classes(t[1], 500);
         return scatter_add(gather(t[0], 0, rows), 0, rows, t[1]);
       }},
      {"embedding",
       {{500, 128}, {1000}},
       [](const auto& t) { return embedding(t[0], classes(t[1], 500)); }},
      {"window_matmul",
       {{2, 2, 256, 32}, {2, 2, 32, 256}},
       [](const auto& t) { return unwindow_matmul(window_matmul(t[0], t[1], 17), t[0], 17); }},
      {"rotary",
       {{2, 4, 256, 32}, {256, 16}, {256, 16}},
       [](const auto& t) {
         return rotary(t[0], {t[1].detach(), t[2].detach()});
       }},
      {"gates",
       {{128, 512}},
       [](const auto& t) { return glu(gelu(t[0])) + silu(glu(sigmoid(t[0]))); }},
      {"elements", {lines}, [](const auto& t) { return log(square(-t[0] + 2.0)) / (1.0 + t[0]); }},
      {"integers",
       {{128, 128}},
       [](const auto& t) { return matmul(classes(t[0], 9), classes(t[0], 5)).sum({0}); }},
      {"bernoulli", {lines}, [](const auto& t) { return bernoulli(t[0].detach()); }},
  };
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

TEST_CASE("threads: a second caller gets the workers that the first cannot use") {
  const FourThreads four;
  std::atomic<int> begun{0};
  std::atomic<bool> done{false};
  std::thread first([&] {
    parallel_for(2, 1, [&](int64_t, int64_t) {
      ++begun;
      comes([&] { return done.load(); });
    });
  });
  CHECK(comes([&] { return begun == 2; }));
  CHECK(threads_of_a_job(2) == 2);
  done = true;
  first.join();
}

TEST_CASE("threads: a job gets workers when another ends") {
  const FourThreads four;
  set_num_threads(2);
  std::atomic<int> begun{0};
  std::atomic<bool> go{false};
  std::thread first([&] {
    parallel_for(2, 1, [&](int64_t, int64_t) {
      ++begun;
      comes([&] { return go.load(); });
    });
  });
  CHECK(comes([&] { return begun == 2; }));
  // The other ends only when this job has begun alone.
  CHECK(threads_of_a_job(2, [&] { go = true; }) == 2);
  first.join();
}

TEST_CASE("threads: jobs of several callers, their pieces and what they throw") {
  const FourThreads four;
  std::vector<int> wrong(kThreads);
  together([&](int t) {
    for (int round = 0; round < 300; ++round) {
      const bool throws = (round + t) % 5 == 0;
      std::vector<int> runs(static_cast<size_t>(2 + (7 * round + t) % 40));
      std::string thrown;
      try {
        parallel_for(static_cast<int64_t>(runs.size()), 1, [&](int64_t begin, int64_t) {
          ++runs[static_cast<size_t>(begin)];
          if (throws && begin == 1) throw std::runtime_error(std::to_string(t));
        });
      } catch (const std::runtime_error& error) {
        thrown = error.what();
      }
      const bool right = throws ? thrown == std::to_string(t) && runs[1] == 1
                                : thrown.empty() && runs == std::vector<int>(runs.size(), 1);
      wrong[static_cast<size_t>(t)] += !right;
    }
  });
  CHECK(wrong == std::vector<int>(kThreads));
}

TEST_CASE("threads: kernels on several give the bits of one, forward and backward") {
  const FourThreads four;
  for (const SplitOp& op : split_ops()) {
    for (const DType dtype : {DType::float32, DType::float64}) {
      CAPTURE(std::string(op.name));
      std::vector<std::vector<double>> before;
      for (const int threads : {1, kThreads}) {
        set_num_threads(threads);
        manual_seed(8);
        std::vector<Tensor> inputs;
        for (const Shape& shape : op.shapes) {
          inputs.push_back(rand(shape, {.dtype = dtype, .requires_grad = true}));
        }
        const Tensor y = op.run(inputs);
        std::vector<std::vector<double>> found{y.to_vector<double>()};
        if (y.requires_grad()) (y * rand(y.shape(), {.dtype = dtype})).sum().backward();
        for (const Tensor& x : inputs) {
          if (x.grad().defined()) found.push_back(x.grad().to_vector<double>());
        }
        if (threads == 1) before = found;
        CHECK(found == before);
      }
    }
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
  nn::CausalLM model = sash::testing::small_lm({.context = 96, .dim = 32});
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

namespace {

// Stops a thread within its first kernel of a name until it is released.
class Stopper final : public KernelObserver {
 public:
  explicit Stopper(std::string kernel) : kernel_(std::move(kernel)) {}

  void before(const KernelCall& call) override {
    if (std::this_thread::get_id() != stopped_.load()) return;
    if (call.name != kernel_ || entered.exchange(true)) return;
    in_time = comes([&] { return released.load(); });
  }
  void after(const KernelCall&) noexcept override {}

  std::atomic<bool> entered{false}, released{false}, in_time{false};

  // Runs `slow` on another thread and, while that is within the kernel, `other` on this one.
  static void check(const std::string& kernel, const std::function<void()>& slow,
                    const std::function<void()>& other) {
    const auto stopper = std::make_shared<Stopper>(kernel);
    REQUIRE(KernelObserver::install(stopper));
    std::thread thread([&] {
      stopper->stopped_ = std::this_thread::get_id();
      slow();
    });
    CHECK(comes([&] { return stopper->entered.load(); }));
    other();
    stopper->released = true;
    thread.join();
    KernelObserver::remove(*stopper);
    CHECK(stopper->in_time);
  }

 private:
  const std::string kernel_;
  std::atomic<std::thread::id> stopped_{};
};

}  // namespace

TEST_CASE("threads: no kernel of one holds up another") {
  const Tensor x = ones({3}, {.dtype = DType::float64});
  const auto leaf = [&] {
    Tensor w = x.clone().requires_grad_();
    w.set_grad(x.clone());
    return w;
  };
  SUBCASE("that adds to a leaf") {
    const Tensor a = leaf(), b = leaf();
    Stopper::check(
        "accumulate", [&] { (a * 2.0).sum().backward(); }, [&] { (b * 3.0).sum().backward(); });
    CHECK(a.grad().to_vector<double>() == std::vector<double>(3, 3));
    CHECK(b.grad().to_vector<double>() == std::vector<double>(3, 4));
  }
  SUBCASE("that adds to a kept gradient") {
    const auto kept = [&](const Tensor& w) {
      Tensor y = w * 2.0;
      y.retain_grad();
      const Tensor z = y * 3.0;
      z.sum().backward({.retain_graph = true});
      return std::pair(y, z);
    };
    const Tensor a = leaf(), b = leaf();
    const auto [y, z] = kept(a);
    const auto [u, v] = kept(b);
    Stopper::check(
        "accumulate", [&] { grad({z.sum()}, {a}), z.sum().backward(); },
        [&] { v.sum().backward(); });
    CHECK(y.grad().to_vector<double>() == std::vector<double>(3, 6));
    CHECK(u.grad().to_vector<double>() == std::vector<double>(3, 6));
  }
  SUBCASE("that makes a table of angles") {
    nn::RotaryTable slow({}, 8), other({}, 8);
    Stopper::check(
        "copy", [&] { slow.angles(0, 9, DType::float32, kCPU); },
        [&] { other.angles(0, 9, DType::float32, kCPU); });
  }
}

TEST_CASE("threads: a hook of one pass holds up no other that shares its leaves") {
  const Tensor w = ones({2}, {.dtype = DType::float64, .requires_grad = true});
  std::atomic<bool> entered{false}, released{false}, in_time{false};
  std::thread slow([&] {
    Tensor y = w * 2.0;
    y.register_hook([&](const Tensor&) {
      entered = true;
      in_time = comes([&] { return released.load(); });
      return Tensor();
    });
    y.sum().backward();
  });
  CHECK(comes([&] { return entered.load(); }));
  (w * 3.0).sum().backward();
  CHECK(w.grad().to_vector<double>() == std::vector<double>(2, 3));
  released = true;
  slow.join();
  CHECK(in_time);
  CHECK(w.grad().to_vector<double>() == std::vector<double>(2, 5));
}

// Vectors move such elements when they grow; else each growth would copy every shape and handle.
static_assert(std::is_nothrow_move_constructible_v<SmallVector<Tensor, 2>>);
static_assert(std::is_nothrow_move_assignable_v<SmallVector<Tensor, 2>>);
static_assert(std::is_nothrow_move_constructible_v<std::pair<SmallVector<int, 2>, Tensor>>);

TEST_CASE("small vectors: a vector that grows moves them") {
  std::vector<SmallVector<Tensor, 2>> lists;
  const Tensor x = ones({1});
  for (int i = 0; i < 100; ++i) {
    lists.emplace_back();
    lists.back().push_back(x);
  }
  const auto* const first = &lists[0];
  const uint32_t handles = x.impl_ref()->use_count();
  lists.reserve(2 * lists.capacity());
  CHECK(&lists[0] != first);
  CHECK(x.impl_ref()->use_count() == handles);
  SmallVector<Tensor, 2> longer{x, x, x};
  const Tensor* const elements = longer.begin();
  const SmallVector<Tensor, 2> taken = std::move(longer);
  CHECK(taken.begin() == elements);
}
