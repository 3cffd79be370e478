// Kinds of attention by name, in modules.
#include <doctest/doctest.h>

#include <cmath>

#include <sash/nn/attention/longformer_attention.h>
#include <sash/nn/attention/window_attention.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/transformer.h>
#include <sash/ops/attention/approximate/clustered_attention.h>
#include <sash/ops/attention/approximate/linear_attention.h>
#include <sash/ops/attention/approximate/top_k_attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;
using nn::AttentionKind;

namespace {

const std::vector<std::string> kKinds{
    "full",   "local:3", "linear", "causal_linear", "clustered:4", "improved_clustered:4,top_k=3",
    "top_k:3"};

std::string text_of(const std::string& text) { return AttentionKind::parse(text).to_string(); }

}  // namespace

TEST_CASE("attention kinds: names, numbers and other spellings") {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"full", "dense"},
      {"local:3", "window:1,1"},
      {"local:4", "window:2,1"},
      {"causal_window:8 | sinks:2", "window:7,0 | sinks:2"},
      {"linear", "linear"},
      {"causal_linear", "causal_linear"},
      {"causal-linear", "causal_linear"},
      {"clustered", "clustered:100,bits=32,iterations=10"},
      {"clustered:50,bits=16,iterations=4,hash_bias=0",
       "clustered:50,bits=16,iterations=4,hash_bias=0"},
      {"clustered: 50, iterations = 4", "clustered:50,bits=32,iterations=4"},
      {"clustered:clusters=7", "clustered:7,bits=32,iterations=10"},
      {"clustered:100,top_k=32", "improved_clustered:100,top_k=32,bits=32,iterations=10"},
      {"improved_clustered:100", "improved_clustered:100,top_k=32,bits=32,iterations=10"},
      {"improved-clustered:100,topk=8", "improved_clustered:100,top_k=8,bits=32,iterations=10"},
      {"top_k:32", "top_k:32"},
      {"exact-topk:topk=5", "top_k:5"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.first);
    CHECK(text_of(c.first) == c.second);
    CHECK(text_of(c.second) == c.second);
  }
  for (const char* wrong :
       {"linear:3", "clustered:0", "clustered:-3", "clustered:3,4", "clustered:x",
        "clustered:", "clustered:3,clusters=4", "clustered:3,bits=65", "clustered:3,planes=4",
        "top_k:0", "top_k:3,bits=8", "clustered:9999999999999999999", "linaer", ""}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(AttentionKind::parse(wrong), ValueError);
  }
  CHECK_THROWS_WITH_AS(AttentionKind::parse("linaer"), doctest::Contains("other kinds are linear"),
                       ValueError);
}

TEST_CASE_TEMPLATE("attention kinds: a module runs the function of its kind", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  const auto draw = [](const Shape& shape) {
    return randn(shape, {.dtype = DType::float64, .device = kCPU}).to(On::device);
  };
  const Tensor q = draw({2, 4, 9, 5}), k = draw({2, 2, 9, 5}), v = draw({2, 2, 9, 3});
  const Tensor lengths = tensor<int32_t>({9, 6}, {.device = On::device});
  const AttentionMask mask = AttentionMask::key_lengths(lengths);
  const auto run = [&](const std::string& text, const AttentionOptions& options = {}) {
    manual_seed(5);
    return AttentionKind::parse(text)(q, k, v, options);
  };
  const auto seeded = [](auto&& call) {
    manual_seed(5);
    return call();
  };
  const ClusterOptions clusters{.clusters = 4, .bits = 16, .iterations = 3};
  const std::string spelled = "clustered:4,bits=16,iterations=3";
  for (const bool padded : {false, true}) {
    const AttentionOptions options{.mask = padded ? mask : AttentionMask()};
    const Tensor given = padded ? lengths : Tensor();
    const ClusteredAttentionOptions own{.key_lengths = given, .query_lengths = given};
    CHECK(all_same(run("full", options), attention(q, k, v, options)));
    CHECK(all_same(run("linear", options), linear_attention(q, k, v, {.key_lengths = given})));
    CHECK(all_same(run("causal_linear", options),
                   linear_attention(q, k, v, {.causal = true, .key_lengths = given})));
    CHECK(all_same(run(spelled, options),
                   seeded([&] { return clustered_attention(q, k, v, clusters, own); })));
    CHECK(all_same(run(spelled + ",top_k=3", options), seeded([&] {
                     return improved_clustered_attention(q, k, v, clusters, 3, own);
                   })));
    CHECK(all_same(run("top_k:3", options), top_k_attention(q, k, v, 3, {.mask = options.mask})));
  }
  const AttentionOptions causal{.mask = AttentionMask::causal() & mask};
  CHECK(all_same(run("causal_linear", causal), run("causal_linear", {.mask = mask})));
  CHECK(all_same(run("top_k:3", causal), top_k_attention(q, k, v, 3, {.mask = causal.mask})));
}

TEST_CASE("attention kinds: an encoder from a small config computes and trains with each") {
  const Tensor x = randn({2, 12, 16});
  for (const std::string& kind : kKinds) {
    CAPTURE(kind);
    manual_seed(2);
    nn::TransformerEncoder encoder(
        {.dim = 16, .heads = 2, .layers = 2, .mlp_dim = 32, .dropout = 0, .attention = kind});
    const Tensor y = encoder(x);
    CHECK(y.shape() == x.shape());
    (y * y * y).sum().backward();
    for (const auto& p : encoder.named_parameters()) {
      CAPTURE(p.first);
      REQUIRE(p.second.grad().defined());
      for (const float g : p.second.grad().to_vector<float>()) REQUIRE(std::isfinite(g));
    }
    // Padding does not reach the tokens before it.
    const AttentionMask lengths = AttentionMask::key_lengths(tensor<int32_t>({12, 7}));
    Tensor other = x.clone();
    other.select(0, 1).narrow(0, 7, 5).fill_(3);
    const auto first = [&](const Tensor& in) {
      manual_seed(3);
      return encoder(in, lengths).select(0, 1).narrow(0, 0, 7);
    };
    CHECK(largest_difference(first(x), first(other)) < 1e-5);
  }
}

TEST_CASE("attention kinds: language models take the causal ones, and do not look ahead") {
  const Tensor tokens = randint(0, 11, {2, 12});
  Tensor changed = tokens.clone();
  changed.narrow(1, 8, 4).fill_(0);
  for (const std::string& kind : kKinds) {
    CAPTURE(kind);
    const nn::CausalLMOptions options = small_options({.attention = kind});
    if (kind == "linear" || kind.find("clustered") != std::string::npos) {
      expect_error<ValueError>(
          "CausalLM: expected causal attention: a mask, causal_linear, top_k, moba, nsa, "
          "gated_delta or kda, since in other kinds tokens learn of later ones, got '" +
              text_of(kind) + "'",
          [&] { nn::CausalLM{options}; });
      continue;
    }
    manual_seed(4);
    nn::CausalLM model(options);
    const NoGradGuard no_grad;
    const Tensor difference = model(tokens) - model(changed);
    CHECK(largest_difference(difference.narrow(1, 0, 8), zeros({2, 8, 11})) < 1e-6);
    CHECK(model.can_cache() == AttentionKind::parse(kind).is_mask());
    CHECK(model.generate({1, 2, 3}, 4, {.temperature = 0}).size() == 4);
  }
}

TEST_CASE("attention kinds: memory grows linearly, but for the choice of top-k") {
  const auto peak = [](const std::string& kind, int64_t tokens) {
    nn::MultiheadAttention module(8, 1, {.attention = kind});
    const Tensor x = randn({1, tokens, 8});
    reset_peak_memory(kCPU);
    const int64_t before = memory_stats(kCPU).current;
    module(x).sum().backward();
    return memory_stats(kCPU).peak - before;
  };
  const int64_t tokens = short_tests() ? 1024 : 4096;
  for (const char* kind : {"local:3", "linear", "causal_linear", "clustered:10,iterations=2",
                           "moba:32,top_k=3", "nsa:32,top_k=4,window=32"}) {
    CAPTURE(kind);
    CHECK(peak(kind, tokens) < tokens * tokens);  // bytes: far below one score for each pair
  }
}

TEST_CASE("wrong calls: attention kinds") {
  using Options = nn::MultiheadAttentionOptions;
  const auto make = [](const Options& options) { nn::MultiheadAttention(8, 2, options); };
  const std::string kind = "attention_kind: expected ";
  expect_error<ValueError>(kind + "no softcap for 'linear', got 2",
                           [&] { make({.attention = "linear", .softcap = 2}); });
  expect_error<ValueError>(kind + "no ALiBi for 'top_k:4', got ALiBi slopes",
                           [&] { make({.attention = "top_k:4", .alibi = true}); });
  expect_error<ValueError>(
      kind + "no relative positions for 'causal_linear', got relative positions",
      [&] { make({.attention = "causal_linear", .relative_positions = 2}); });
  expect_error<ValueError>(kind + "no sink logits for 'top_k:4', got sink logits",
                           [&] { make({.attention = "top_k:4", .sink_logits = true}); });
  expect_error<ValueError>(kind + "key_lengths or no mask for 'linear', got 'window:2,2'", [] {
    nn::WindowAttention(8, 2, nn::AttentionWindow::symmetric(2), {.attention = "linear"});
  });
  CHECK_THROWS_AS(nn::LongformerAttention(8, 2, {.window = 2}, {.attention = "clustered:3"}),
                  ValueError);
  expect_error<ValueError>(kind + "no scale for 'linear', got 2", [] {
    const Tensor q = zeros({1, 1, 2, 4});
    nn::AttentionKind::parse("linear")(q, q, q, {.scale = 2.0});
  });
  nn::MultiheadAttention clustered(8, 2, {.attention = "clustered:3"});
  CHECK(clustered.describe() ==
        "MultiheadAttention(8, heads 2, clustered:3,bits=32,iterations=10)");
  const std::string named = "'clustered:3,bits=32,iterations=10'";
  expect_error<ValueError>(kind + "key_lengths or no mask for " + named + ", got 'causal'", [&] {
    clustered(randn({1, 4, 8}), AttentionMask::causal());
  });
  expect_error<ValueError>(kind + "a mask for key-value caches, got " + named,
                           [&] { clustered.new_cache(); });
}

TEST_CASE("attention kinds: Full, Length and TriangularCausal masks of fast-transformers") {
  const AttentionMask given = tensor({{true, false, true}, {false, true, true}});
  CHECK(given.to_dense(2, 3).to_vector<bool>() ==
        std::vector<bool>{true, false, true, false, true, true});
  const AttentionMask lengths = AttentionMask::key_lengths(tensor<int32_t>({3, 1, 2}));
  CHECK(lengths.to_dense({3, 1, 1, 4}).to_vector<bool>() ==
        std::vector<bool>{true, true, true, false, true, false, false, false, true, true, false,
                          false});
  CHECK(AttentionMask::causal().to_dense(3, 3).to_vector<bool>() ==
        std::vector<bool>{true, false, false, true, true, false, true, true, true});
  CHECK(AttentionMask().shows_all());
}
