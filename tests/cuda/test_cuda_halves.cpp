// Modules and optimisers in float16 and bfloat16: arithmetic on halves needs a card (skipped
// without one, unless SASH_REQUIRE_CUDA is set); the CPU compares and draws them and refuses the
// rest.
#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <vector>

#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/cuda_device.h"

using namespace sash;

namespace {

constexpr DType kHalves[] = {DType::float16, DType::bfloat16};

/// Losses of some steps on one batch.
std::vector<double> train(nn::CausalLM& model, optim::Optimizer& optimizer) {
  const int steps = short_tests() ? 3 : 40;
  const Tensor tokens = randint(0, 31, {4, 16}, {.device = kCPU}).to(kCUDA);
  const Tensor targets = randint(0, 31, {4, 16}, {.device = kCPU}).to(kCUDA);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(model(tokens), targets);
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 1);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void check_learns(const std::vector<double>& losses) {
  for (const double loss : losses) CHECK(std::isfinite(loss));
  if (!short_tests()) CHECK(losses.back() < 0.8 * losses.front());
}

nn::CausalLM causal_lm(DType dtype) {
  manual_seed(3);
  nn::CausalLM model(
      {.vocab = 31, .context = 16, .dim = 32, .heads = 4, .layers = 2, .dropout = 0.1});
  model.to(dtype);
  model.to(kCUDA);
  return model;
}

void check_dtype(const nn::Module& model, DType dtype) {
  for (const auto& parameter : model.named_parameters()) {
    INFO(parameter.first);
    CHECK(parameter.second.dtype() == dtype);
    CHECK(parameter.second.grad().dtype() == dtype);
  }
}

}  // namespace

TEST_CASE("cuda halves: a language model in bfloat16 learns with AdamW") {
  if (cuda_missing()) return;
  nn::CausalLM model = causal_lm(DType::bfloat16);
  optim::AdamW adamw(model.parameters(), {.lr = 3e-3});
  check_learns(train(model, adamw));
  check_dtype(model, DType::bfloat16);
  for (const auto& [key, tensor] : adamw.state_dict()) {
    if (key.find("exp_avg") != std::string::npos) CHECK(tensor.dtype() == DType::bfloat16);
  }
}

TEST_CASE("cuda halves: a language model in either half type learns with SGD") {
  if (cuda_missing()) return;
  for (const DType half : kHalves) {
    INFO(name(half));
    nn::CausalLM model = causal_lm(half);
    optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    check_learns(train(model, sgd));
    check_dtype(model, half);
  }
}

TEST_CASE("cuda halves: rounded random numbers are the CPU's") {
  if (cuda_missing()) return;
  for (const DType half : kHalves) {
    manual_seed(5);
    const Tensor ours = rand({1001}, {.dtype = half, .device = kCPU});
    manual_seed(5);
    const Tensor theirs = rand({1001}, {.dtype = half, .device = kCUDA});
    CHECK(theirs.to_vector<float>() == ours.to_vector<float>());
  }
}

TEST_CASE("halves on the CPU: random numbers are float32's, rounded") {
  for (const DType half : kHalves) {
    for (Tensor (*draw)(const Shape&, const TensorOptions&) : {rand, randn}) {
      manual_seed(5);
      const Tensor y = draw({5, 67}, {.dtype = half, .device = kCPU});
      manual_seed(5);
      const Tensor x = draw({5, 67}, {.dtype = DType::float32, .device = kCPU});
      CHECK(y.dtype() == half);
      CHECK(y.to_vector<float>() == x.to(half).to_vector<float>());
    }
  }
}

TEST_CASE("halves on the CPU: comparisons are float32's") {
  const std::vector<float> numbers{-2, 0.1F, 0.5F, std::nanf(""), 3, HUGE_VALF};
  for (const DType half : kHalves) {
    const Tensor x = tensor(numbers, {6}, {.device = kCPU}).to(half);
    const Tensor y = x.flatten().clone();
    CHECK(eq(x, y).to_vector<bool>() == std::vector<bool>{true, true, true, false, true, true});
    CHECK(lt(x, 0.5).to_vector<bool>() ==
          std::vector<bool>{true, true, false, false, false, false});
    CHECK(eq(x, 0.1).to_vector<bool>() ==
          std::vector<bool>{false, true, false, false, false, false});
    CHECK(isnan(x).to_vector<bool>() == std::vector<bool>{false, false, false, true, false, false});
  }
}

TEST_CASE("halves on the CPU: arithmetic is refused by name, and nothing is written") {
  for (const DType half : kHalves) {
    const Tensor x = ones({2, 3}, {.dtype = half, .device = kCPU});
    CHECK_THROWS_WITH_AS(
        x + x, doctest::Contains("add: expected float32 or float64 or int64 or int32"), DTypeError);
    CHECK_THROWS_WITH_AS(gelu(x), doctest::Contains("gelu: expected float32 or float64"),
                         DTypeError);
    Tensor y = x.clone();
    CHECK_THROWS_AS(y.mul_(3), DTypeError);
    CHECK(y.to_vector<float>() == std::vector<float>(6, 1));
  }
}

TEST_CASE("halves on the CPU: an optimiser that meets one among its parameters changes none") {
  Tensor single = ones({3}, {.device = kCPU}), half = single.to(DType::bfloat16);
  for (Tensor* x : {&single, &half}) {
    x->requires_grad_();
    x->set_grad(ones_like(*x));
  }
  optim::AdamW adamw({single, half});
  optim::SGD sgd({single, half}, {.lr = 0.1});
  CHECK_THROWS_AS(adamw.step(), DTypeError);
  CHECK_THROWS_AS(sgd.step(), DTypeError);
  CHECK_THROWS_AS(optim::clip_grad_value_({single, half}, 0.5), DTypeError);
  CHECK(single.to_vector<float>() == std::vector<float>(3, 1));
  CHECK(single.grad().to_vector<float>() == std::vector<float>(3, 1));
  for (const auto& [key, tensor] : adamw.state_dict()) {
    if (key.ends_with(".step")) CHECK(tensor.item<int64_t>() == 0);
  }
}
