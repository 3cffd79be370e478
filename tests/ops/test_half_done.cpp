// Calls that run out of memory half way change nothing.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include <sash/core/error.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/backends/forwarding_backend.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using testing::expect_error;

namespace {

// The CPU's backend; out of memory after `left` allocations.
class ScarceMemory final : public testing::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void* allocate(int64_t bytes, Device device, Stream stream) override {
    if (bytes > 0 && left >= 0 && left-- == 0) throw OutOfMemory("allocate", "none is left");
    return inner_.allocate(bytes, device, stream);
  }

  int left = -1;  // -1: no limit
};

ScarceMemory& installed() { return testing::in_front_of_cpu<ScarceMemory>(); }

// Whether `f` completes with at most that many allocations.
bool succeeds(int allocations, const std::function<void()>& f) {
  ScarceMemory& memory = installed();
  memory.left = allocations;
  bool done = true;
  try {
    f();
  } catch (const OutOfMemory&) {
    done = false;
  }
  memory.left = -1;
  return done;
}

// Lets `f` fail at its first allocation, then at its second, and so on until it succeeds; `check`
// runs after each failure.
void fail_everywhere(const std::function<void()>& f, const std::function<void()>& check) {
  int allocations = 0;
  for (; !succeeds(allocations, f); ++allocations) {
    CAPTURE(allocations);
    check();
  }
  CHECK(allocations > 1);
}

using Values = std::vector<std::vector<double>>;

Values values(const StateDict& dict) {
  Values all;
  for (const auto& [name, tensor] : dict) all.push_back(tensor.to_vector<double>());
  return all;
}

nn::Sequential make_net() { return nn::Sequential(nn::Linear(5, 7), nn::Linear(7, 3)); }

void take_step(nn::Sequential& net, optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  net(randn({4, 5})).sum().backward();
  optimizer.step();
}

}  // namespace

TEST_CASE("out of memory: a key-value cache stays unchanged") {
  const NoGradGuard no_grad;
  const Tensor first = randn({1, 2, 30, 4}), more = randn({1, 2, 40, 4});
  const Tensor first_v = first + first, more_v = more + more;
  for (const AttentionMask& mask : {AttentionMask::causal(), AttentionMask::causal_window(50),
                                    AttentionMask::causal_window(9)}) {
    nn::KeyValueCache cache(mask), expected(mask);
    fail_everywhere([&] { cache.append(first, first_v); },
                    [&] {
                      CHECK(cache.length() == 0);
                      CHECK(cache.bytes() == 0);
                    });
    const int64_t bytes = cache.bytes();
    nn::CachedKeys seen;
    fail_everywhere([&] { seen = cache.append(more, more_v); },
                    [&] {
                      CHECK(cache.length() == 30);
                      CHECK(cache.bytes() == bytes);
                    });
    expected.append(first, first_v);
    const nn::CachedKeys wanted = expected.append(more, more_v);
    CHECK(seen.k.to_vector<double>() == wanted.k.to_vector<double>());
    CHECK(seen.v.to_vector<double>() == wanted.v.to_vector<double>());
  }
}

TEST_CASE("out of memory: caches of unequal length after a failed call are refused") {
  manual_seed(1);
  const NoGradGuard no_grad;
  nn::CausalLM lm({.vocab = 7, .context = 50, .dim = 8, .heads = 2, .layers = 2});
  lm.eval();
  const Tensor tokens = zeros({1, 40}, {.dtype = DType::int64});
  bool unequal = false;
  for (int allocations = 0; !unequal; ++allocations) {
    std::vector<nn::KeyValueCache> caches = lm.new_caches();
    REQUIRE_FALSE(succeeds(allocations, [&] { lm(tokens, caches); }));
    unequal = caches[0].length() != caches[1].length();
    if (!unequal) continue;
    expect_error<ValueError>(
        "CausalLM: expected caches of one length, or new ones after a call that failed, got 40 and "
        "0 tokens",
        [&] { lm(tokens.narrow(1, 0, 1), caches); });
  }
}

TEST_CASE("out of memory: a module loads everything or nothing") {
  manual_seed(2);
  nn::Sequential net = make_net(), other = make_net();
  other.to(DType::float64);  // so that loading has to cast
  const Values before = values(net.state_dict());
  fail_everywhere([&] { net.load_state_dict(other.state_dict()); },
                  [&] { CHECK(values(net.state_dict()) == before); });
  CHECK(values(net.state_dict()) != before);
}

TEST_CASE("out of memory: a module moves or casts everything or nothing") {
  manual_seed(3);
  nn::Sequential net = make_net();
  net(randn({4, 5})).sum().backward();
  fail_everywhere([&] { net.to(DType::float64); },
                  [&] {
                    for (const Tensor& p : net.parameters()) {
                      CHECK(p.dtype() == DType::float32);
                      CHECK(p.grad().dtype() == DType::float32);
                    }
                  });
}

TEST_CASE("out of memory: an optimizer loads everything or nothing") {
  manual_seed(4);
  nn::Sequential net = make_net(), other = make_net();
  optim::AdamW from(other.parameters(), {.lr = 0.5}), into(net.parameters());
  take_step(other, from);
  take_step(net, into);
  take_step(net, into);
  const StateDict saved = from.state_dict();
  const Values before = values(into.state_dict());
  fail_everywhere([&] { into.load_state_dict(saved); },
                  [&] {
                    CHECK(values(into.state_dict()) == before);
                    CHECK(into.lr() == 1e-3);
                  });
  CHECK(values(into.state_dict()) == values(saved));
}

TEST_CASE("out of memory: a checkpoint is loaded whole or not at all") {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.safetensors");
  manual_seed(5);
  nn::Sequential net = make_net(), other = make_net();
  net.to(DType::float64);
  optim::SGD from(other.parameters(), {.lr = 0.5, .momentum = 0.9});
  take_step(other, from);
  optim::save_checkpoint(path, other, from, {.step = 3});
  optim::SGD into(net.parameters());
  const Values weights = values(net.state_dict()), state = values(into.state_dict());
  manual_seed(6);
  const RandomState random = random_state();
  fail_everywhere([&] { optim::load_checkpoint(path, net, into); },
                  [&] {
                    CHECK(values(net.state_dict()) == weights);
                    CHECK(values(into.state_dict()) == state);
                    CHECK(random_state() == random);
                  });
  CHECK(values(net.state_dict()) == values(other.state_dict()));
  CHECK(into.lr() == 0.5);
}
