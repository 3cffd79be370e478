// Every call of CUDA and of cuBLAS in a training step, and in its capture, fails once. Each time
// the error is a typed one, nothing leaks, and training goes on with the bits that it would have
// had.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/backend/plugin.h>
#include <sash/core/error.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;

namespace {

using FailCall = int64_t(int64_t);

/// `sash_cuda_fail_call` of the plug-in; null in a static build.
FailCall* fail_call() {
  const std::string path = detail::library_folder() + "/libsash_cuda.so";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return library ? reinterpret_cast<FailCall*>(dlsym(library, "sash_cuda_fail_call")) : nullptr;
}

StateDict on_host(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, x] : state) copy.push_back({name, x.detach().to(kCPU)});
  return copy;
}

struct Training {
  nn::CausalLM model = make();
  optim::AdamW optimizer{model.parameters(), {.lr = 1e-2}};
  StateDict weights{}, moments{};

  static nn::CausalLM make() {
    manual_seed(11);
    nn::CausalLM model = small_lm({.attention = "causal_window:4"});
    model.to(kCUDA);
    return model;
  }
  optim::CapturedStep step(bool capture) {
    return optim::CapturedStep(
        [this](const std::vector<Tensor>& inputs) {
          optimizer.zero_grad();
          const Tensor loss = cross_entropy(model(inputs[0]).view({-1, 11}), inputs[1]);
          loss.backward();
          optimizer.step();
          return std::vector<Tensor>{loss.detach()};
        },
        {.device = kCUDA, .capture = capture});
  }
  void keep() {
    weights = on_host(model.state_dict());
    moments = on_host(optimizer.state_dict());
  }
  void go_back() {
    model.load_state_dict(weights);
    optimizer.load_state_dict(moments);
  }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const Tensor& p : model.parameters()) {
      const std::vector<double> part = p.to_vector<double>();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
};

/// Calls a step so often, and in the end once more, whose numbers it returns. With `fail`, each
/// call of CUDA in the first ones fails once.
std::vector<double> train(bool capture, int calls, FailCall* fail) {
  Training all;
  const Tensor x = arange(0, 48, 1, {.dtype = DType::int64, .device = kCUDA}).view({3, 16});
  const std::vector<Tensor> inputs{remainder(x, 11),
                                   zeros({48}, {.dtype = DType::int64, .device = kCUDA})};
  {
    optim::CapturedStep first = all.step(false);  // sets up what a recording cannot
    for (int i = 0; i < 2; ++i) first(inputs);
  }
  all.keep();
  int64_t failed = 0, number = 1, held = 0;
  for (bool reached = fail != nullptr; reached; ++number) {
    {
      optim::CapturedStep step = all.step(capture);
      fail(number);
      try {
        for (int i = 0; i < calls; ++i) step(inputs);
        synchronize(kCUDA);
      } catch (const Error& error) {
        ++failed;
        const bool named = std::string(error.what()).find("cuda") != std::string::npos;
        CHECK_MESSAGE(named, error.what());
      }
      reached = fail(0) == 0;
      all.go_back();
      step(inputs);  // the same object works on
      all.go_back();
    }
    all.optimizer.zero_grad();
    synchronize(kCUDA);
    const int64_t current = memory_stats(kCUDA).current;
    if (number == 1) held = current;
    CHECK(current == held);
  }
  if (fail) {
    CHECK(failed > 10);
    MESSAGE("calls: ", number - 1, ", errors: ", failed);
  }
  optim::CapturedStep step = all.step(capture);
  for (int i = 0; i <= calls; ++i) step(inputs);
  return all.numbers();
}

}  // namespace

TEST_CASE("cuda faults: each call of a step fails once, eagerly and while it is recorded") {
  if (missing(kCUDA)) return;
  FailCall* const fail = fail_call();
  if (!fail) {
    MESSAGE("skipped: a static build");
    return;
  }
  CHECK(train(false, 1, fail) == train(false, 1, nullptr));
  CHECK(train(true, 3, fail) == train(true, 3, nullptr));
}
