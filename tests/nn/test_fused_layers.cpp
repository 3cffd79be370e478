// What modules compute by ops that do the work of several of them.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <span>
#include <string>

#include <sash/nn/models/causal_lm.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/expect_error.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;

namespace {

nn::CausalLM model_of(double dropout) {
  manual_seed(2);
  return small_lm({.context = 9, .layers = 3, .dropout = dropout});
}

bool all_near(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(std::abs(x[i] - y[i]) <= 1e-5)) return false;
  }
  return x.size() == y.size();
}

Tensor tokens() { return randint(0, 11, {2, 9}); }

/// The logits, and the gradients of all parameters for one cotangent.
std::vector<Tensor> results(nn::CausalLM& model, const Tensor& x, const Tensor& g) {
  manual_seed(5);
  const Tensor y = model(x);
  std::vector<Tensor> all{y};
  for (const Tensor& d : grad({y}, model.parameters(), {g})) all.push_back(d);
  return all;
}

}  // namespace

TEST_CASE("fused layers: hooks see every call, and the results are the same") {
  for (const double dropout : {0.0, 0.3}) {
    nn::CausalLM model = model_of(dropout);
    const Tensor x = tokens(), g = randn({2, 9, 11});
    const auto fused = results(model, x, g);
    int calls = 0;
    const auto hook = [&calls](const nn::Module&, std::span<const Tensor>, const Tensor&) {
      ++calls;
      return Tensor();
    };
    nn::TransformerEncoderLayer& layer = model.layers[1];
    for (nn::Module* module : std::initializer_list<nn::Module*>{
             &layer, &layer.norm1, &layer.norm2, &layer.linear1, &layer.linear2, &layer.dropout,
             &layer.dropout1, &layer.dropout2, &model.norm}) {
      calls = 0;
      auto handle = module->register_forward_hook(hook);
      const auto plain = results(model, x, g);
      CHECK(calls >= 1);
      for (size_t i = 0; i < fused.size(); ++i) CHECK(all_near(plain[i], fused[i]));
      handle.remove();
    }
  }
}

TEST_CASE("fused layers: each module of a model calls its hook once") {
  nn::CausalLM model = model_of(0);
  const Tensor x = tokens(), want = model(x);
  std::map<std::string, int> calls;
  for (const auto& [name, module] : model.named_modules()) {
    if (name.empty() || name == "layers") continue;
    calls[name] = 0;
    const auto count = [&calls, name](const nn::Module&, std::span<const Tensor>, const Tensor&) {
      ++calls[name];
      return Tensor();
    };
    module->register_forward_hook(count);
  }
  CHECK(all_near(model(x), want));
  for (const auto& [name, count] : calls) {
    CAPTURE(name);
    CHECK(count == 1);
  }
}

TEST_CASE("fused layers: the loss of a model is the cross entropy of its logits") {
  nn::CausalLM model = model_of(0);
  const Tensor x = tokens();
  Tensor targets = tokens();
  targets[0][3] = -100;
  const Tensor fused = model.loss(x, targets, {.label_smoothing = 0.1, .chunk = 5});
  const Tensor plain = cross_entropy(model(x), targets, {.label_smoothing = 0.1});
  CHECK(fused.item<double>() == doctest::Approx(plain.item<double>()).epsilon(1e-6));
  const auto found = grad({fused}, model.parameters()), wanted = grad({plain}, model.parameters());
  for (size_t i = 0; i < found.size(); ++i) CHECK(all_near(found[i], wanted[i]));
}

TEST_CASE("wrong calls: fused layers") {
  nn::TransformerEncoderLayer layer({.dim = 8, .heads = 2});
  nn::LayerNorm norm(8);
  const Tensor x = randn({1, 2, 8});
  expect_error<ValueError>(
      "TransformerEncoderLayer: expected norms before the branches for the norm of the next layer, "
      "got norms after sums",
      [&] {
        layer(SumAndNorm{x, x}, AttentionMask(), norm);
      });
}
