// Generators of devices, and of one's own.
#include <doctest/doctest.h>

#include <set>
#include <thread>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE_TEMPLATE("generator: its numbers are those of manual_seed, whatever others draw", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const TensorOptions on{.device = On::device};
  const auto draw = [&](auto&... own) {
    const Tensor p = tensor({0.1, 0.5, 0.7, 0.2, 0.9, 0.4, 0.3}).to(On::device);
    return std::vector<Tensor>{rand({5, 3}, own..., on),
                               randn(7, own..., on),
                               randint(0, 99, 4, own..., on),
                               randperm(9, own..., on),
                               bernoulli(p.expand({9, 7}), own...),
                               multinomial(p, 1, false, own...),
                               multinomial(p, 5, false, own...),
                               multinomial(p, 9, true, own...)};
  };
  manual_seed(11);
  const auto expected = draw();
  manual_seed(3);
  Generator first(11), second(12);
  const RandomState before = random_state(On::device);
  static_cast<void>(rand(100, second, on));
  const auto found = draw(first);
  for (size_t i = 0; i < found.size(); ++i) CHECK(all_same(found[i], expected[i]));
  CHECK(random_state(On::device) == before);
  CHECK(first.seed() == 11);
}

TEST_CASE("generator: a saved state brings the same numbers again") {
  Generator generator(5);
  static_cast<void>(randn(9, generator));
  const RandomState saved = generator.state();
  const Tensor x = randn(9, generator);
  CHECK(!all_same(x, randn(9, generator)));
  generator.set_state(saved);
  CHECK(all_same(x, randn(9, generator)));
  Generator other(saved);
  CHECK(all_same(x, randn(9, other)));
}

TEST_CASE_TEMPLATE("generator: randperm is a permutation, the same on every device", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const TensorOptions on{.device = On::device};
  for (const int64_t n : {0, 1, 7, 5000}) {
    Generator generator(3), same(3);
    const Tensor order = randperm(n, generator, on);
    CHECK(order.dtype() == DType::int64);
    CHECK(all_same(order.to(kCPU), randperm(n, same, {.device = kCPU})));
    const Tensor seen = zeros(n, {.dtype = DType::int64, .device = On::device});
    CHECK(all_equal(index_add(seen, 0, order, ones_like(order)), 1));
    if (n > 100) CHECK(!all_same(order, arange(n, on)));
  }
  manual_seed(3);
  Generator generator(3);
  CHECK(all_same(randperm(50, on), randperm(50, generator, on)));
}

TEST_CASE("generators: each device has one, and manual_seed sets all") {
  const Device card{DeviceType::cuda, 0}, other{DeviceType::cuda, 5};  // not asked of the backend
  manual_seed(9);
  for (const Device device : {kCPU, card, other}) CHECK(random_state(device) == RandomState{9, 0});
  rand({8}, {.device = kCPU});
  CHECK(random_state(kCPU) == RandomState{9, 2});
  CHECK(random_state(card) == RandomState{9, 0});
  set_random_state({4, 30}, other);
  const RandomStates all = random_states();
  CHECK(all.others == RandomState{9, 0});
  REQUIRE(all.devices.size() == 2);
  CHECK(all.devices[0] == std::pair(kCPU, RandomState{9, 2}));
  CHECK(all.devices[1] == std::pair(other, RandomState{4, 30}));
  manual_seed(3);
  for (const Device device : {kCPU, card, other}) CHECK(random_state(device) == RandomState{3, 0});
  set_random_states(all);
  CHECK(random_states() == all);
  CHECK(random_state(card) == RandomState{9, 0});
  testing::expect_error<DeviceError>("generator: expected a device of index 0 or above, got -1",
                                     [] {
                                       set_random_state({}, {DeviceType::cuda, -1});
                                     });
  CHECK(random_states() == all);
}

TEST_CASE("generators: threads that draw at the same time get numbers of their own") {
  constexpr size_t kThreads = 4, kDraws = 20'000;
  manual_seed(2);
  std::vector<std::vector<uint64_t>> starts(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&own = starts[t]] {
      for (size_t i = 0; i < kDraws; ++i) own.push_back(next_philox(kCPU, 8).offset);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (const std::vector<uint64_t>& own : starts) all.insert(own.begin(), own.end());
  CHECK(all.size() == kThreads * kDraws);
  CHECK(random_state(kCPU) == RandomState{2, 2 * kThreads * kDraws});
}

namespace {

// The results of everything that draws, in turn.
std::vector<Tensor> all_draws(Device device) {
  const TensorOptions on{.device = device};
  const Tensor p = tensor({0.1, 0.5, 0.7, 0.2, 0.9, 0.4, 0.3}).to(device);
  const Tensor x = ones({9, 8}, on), q = ones({1, 2, 5, 8}, on);
  nn::Dropout layer(0.5);
  nn::MultiheadAttention heads(8, 2, {.dropout = 0.4});
  heads.to(device);
  const SumAndNorm normed = dropout_add_layer_norm(x, x, {}, {}, 0.5);
  nn::BlockSparseLinear sparse(32, 32, {.density = 0.5, .block = 16});
  std::vector<Tensor> all{rand({5, 3}, on), randn({7}, on), rand_like(x), randn_like(x)};
  for (const Tensor& y : {randint(0, 99, {4}, on),
                          randint(0, int64_t{1} << 40, {4}, on),
                          randperm(9, on),
                          bernoulli(p),
                          multinomial(p, 5),
                          dropout(x, 0.3),
                          layer(x),
                          normed.sum,
                          normed.norm,
                          attention(q, q, q, {.dropout = 0.25}),
                          heads(ones({1, 3, 8}, on)),
                          random_planes(5, 3, true, device),
                          clustered_attention(q, q, q, {.clusters = 2}),
                          nn::init::uniform_(empty({4, 3}, on)),
                          nn::init::normal_(empty({4, 3}, on)),
                          nn::init::trunc_normal_(empty({4, 3}, on)),
                          nn::init::xavier_uniform_(empty({4, 3}, on)),
                          nn::init::xavier_normal_(empty({4, 3}, on)),
                          nn::init::kaiming_uniform_(empty({4, 3}, on)),
                          nn::init::kaiming_normal_(empty({4, 3}, on)),
                          nn::Linear(3, 4).weight,
                          nn::Embedding(3, 4).weight,
                          sparse.weight,
                          sparse.weight_blocks}) {
    all.push_back(y.detach());
  }
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("generators: everything that draws takes a guard's generator", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const DefaultDevice scope(On::device);
  manual_seed(11);
  const std::vector<Tensor> expected = all_draws(On::device);
  const RandomState end = random_state(On::device);
  manual_seed(3);
  Generator generator(11), inner(5);
  {
    const GeneratorGuard guard(generator);
    {
      const GeneratorGuard nested(inner);
      static_cast<void>(rand({100}));
    }
    const std::vector<Tensor> found = all_draws(On::device);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      CHECK(all_same(found[i], expected[i]));
    }
    // Another thread has no guard.
    std::thread([] { next_philox(kCPU, 8); }).join();
  }
  CHECK(generator.state() == end);
  CHECK(inner.state() == RandomState{5, 25});
  CHECK(random_state(kCPU) == RandomState{3, 2});
  if (!On::device.is_cpu()) CHECK(random_state(On::device) == RandomState{3, 0});
}

TEST_CASE("generators: a guard in each thread fixes what threads draw on one device") {
  const auto masks = [](uint64_t seed) {
    Generator generator(seed);
    const GeneratorGuard guard(generator);
    std::vector<Tensor> all;
    for (int i = 0; i < 200; ++i) all.push_back(dropout(ones({64}, {.device = kCPU}), 0.5));
    return all;
  };
  constexpr size_t kThreads = 4;
  std::vector<std::vector<Tensor>> found(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { found[t] = masks(t); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < kThreads; ++t) {
    const std::vector<Tensor> alone = masks(t);
    for (size_t i = 0; i < alone.size(); ++i) REQUIRE(all_same(found[t][i], alone[i]));
  }
}

TEST_CASE_TEMPLATE("generators: checkpoint repeats the draws of generators of one's own", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  Generator argument(5), around(6), within(7);
  const Tensor x = ones({64}, {.device = On::device}).requires_grad_();
  const auto nested = [&](const Tensor& a) { return seeded_dropout(a, 0.1, argument); };
  const auto fn = [&](const Tensor& a) {
    const Tensor y = dropout(checkpoint(nested, a), 0.1);
    const GeneratorGuard guard(within);
    return dropout(y, 0.1);
  };
  Tensor y;
  {
    const GeneratorGuard guard(around);
    y = checkpoint(fn, x);
  }
  const RandomState after[] = {argument.state(), around.state(), within.state()};
  y.sum().backward();
  CHECK(largest_difference(x.grad(), y.detach()) < 1e-6);
  CHECK(argument.state() == after[0]);
  CHECK(around.state() == after[1]);
  CHECK(within.state() == after[2]);
}

TEST_CASE("generators: evaluating and copying a model leaves what other threads drew") {
  manual_seed(8);
  nn::Sequential model(nn::Linear(4, 4), nn::Dropout(0.5));
  const RandomState before = random_state(kCPU);
  struct Copied : nn::Module {
    nn::Linear& layer = register_module<nn::Linear>("layer", 4, 4);
    Tensor forward(const Tensor& x) override { return layer(x); }
  } module;
  const RandomState start = random_state(kCPU);
  const Copied copy = nn::deep_copy(module, [] {
    std::thread([] { next_philox(kCPU, 400); }).join();
    return Copied();
  });
  CHECK(random_state(kCPU) == RandomState{8, start.offset + 100});
  Generator own(1);
  const GeneratorGuard guard(own);
  nn::deep_copy(module);
  CHECK(own.state() == RandomState{1, 0});
  CHECK(start.offset > before.offset);
}
