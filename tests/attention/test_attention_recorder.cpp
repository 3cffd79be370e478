// The weights of attention that a model computes, without its help.
#include <doctest/doctest.h>

#include <sash/nn/models/causal_lm.h>
#include <sash/ops/attention/exact/attention_recorder.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/small_models.h"

using namespace sash;

TEST_CASE("attention recorder: the weights of each call") {
  const TensorOptions host{.dtype = DType::float64, .device = kCPU};
  const Tensor q = randn({2, 4, 5, 3}, host), k = randn({2, 2, 7, 3}, host);
  const Tensor v = randn({2, 2, 7, 3}, host);
  const AttentionOptions options{.mask = AttentionMask::window(2, 0), .softcap = 3, .dropout = 0.5};
  attention(q, k, v, options);
  const AttentionRecorder outer;
  {
    const AttentionRecorder recorder;
    attention(q, k, v, options);
    attention_with_lse(q, k, v);
    REQUIRE(recorder.weights().size() == 2);
    AttentionOptions without = options;
    without.dropout = 0;
    CHECK(recorder.weights()[0].to_vector<double>() ==
          attention_probabilities(q, k, without).to_vector<double>());
    CHECK(recorder.weights()[1].shape() == Shape{2, 4, 5, 7});
  }
  CHECK(outer.weights().empty());
  attention(q, k, v);
  CHECK(outer.weights().size() == 1);
}

TEST_CASE("attention recorder: a model's layers in order, by head, under their masks") {
  nn::CausalLM model = sash::testing::small_lm({.context = 8, .layers = 3});
  model.to(kCPU);
  const Tensor tokens = zeros({1, 6}, {.dtype = DType::int64, .device = kCPU});
  const AttentionRecorder recorder;
  const Tensor logits = model(tokens);
  REQUIRE(recorder.weights().size() == 3);
  for (const Tensor& weights : recorder.weights()) {
    CHECK(weights.shape() == Shape{1, 2, 6, 6});
    CHECK(!weights.requires_grad());
    const std::vector<double> w = weights.to_vector<double>();
    CHECK(w[0] == doctest::Approx(1));
    CHECK(w[1] == 0);  // the second token is in the first one's future
  }
}
