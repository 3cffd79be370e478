#include <doctest/doctest.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/transformer.h>
#include <sash/ops/attention/exact/packed_heads.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <algorithm>
#include <cmath>

#include "../support/attention/plain_attention.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;

namespace {

const TensorOptions kDouble{.dtype = DType::float64};

nn::MultiheadAttention attention_with_biases(int64_t dim, int64_t heads) {
  nn::MultiheadAttention attention(dim, heads);
  attention.to(DType::float64);
  for (auto& [name, p] : attention.state_dict()) p.copy_(randn(p.shape(), kDouble));
  return attention;
}

}  // namespace

TEST_CASE("keys of attention, layers and encoders are PyTorch's") {
  CHECK(keys(nn::MultiheadAttention(8, 2)) ==
        Names{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"});
  CHECK(keys(nn::MultiheadAttention(8, 2, {.bias = false})) ==
        Names{"in_proj_weight", "out_proj.weight"});
  const Names layer{"self_attn.in_proj_weight",
                    "self_attn.in_proj_bias",
                    "self_attn.out_proj.weight",
                    "self_attn.out_proj.bias",
                    "linear1.weight",
                    "linear1.bias",
                    "linear2.weight",
                    "linear2.bias",
                    "norm1.weight",
                    "norm1.bias",
                    "norm2.weight",
                    "norm2.bias"};
  CHECK(keys(nn::TransformerEncoderLayer({.dim = 8, .heads = 2})) == layer);
  Names encoder;
  for (const std::string& key : layer) encoder.push_back("layers.0." + key);
  encoder.insert(encoder.end(), {"norm.weight", "norm.bias"});
  CHECK(keys(nn::TransformerEncoder({.dim = 8, .heads = 2, .layers = 1, .final_norm = true})) ==
        encoder);
  Names lm{"token_embedding.weight", "position_embedding.weight"};
  lm.insert(lm.end(), encoder.begin(), encoder.end());
  lm.push_back("head.weight");
  CHECK(keys(nn::CausalLM({.vocab = 5, .context = 4, .dim = 8, .heads = 2, .layers = 1})) == lm);
}

TEST_CASE("multi-head attention against plain loops") {
  manual_seed(1);
  nn::MultiheadAttention attention = attention_with_biases(6, 3);
  const Tensor x = randn({1, 5, 6}, kDouble);
  AttentionProblem triangle;
  triangle.sees = [](const MaskIndex& at) { return at.key <= at.query; };
  const Tensor all = plain_module(x, attention), causal = plain_module(x, attention, triangle);
  CHECK(largest_difference(attention(x), all) < 1e-12);
  CHECK(largest_difference(attention(x, AttentionMask::causal()), causal) < 1e-12);
  // Separate queries, keys and values go through thirds of the same projection.
  const Tensor copy = x.clone();
  CHECK(largest_difference(attention(x, copy, copy), all) < 1e-12);
  const Tensor last = attention(x.narrow(1, 3, 2), x, x, AttentionMask::causal());
  CHECK(largest_difference(last, causal.narrow(1, 3, 2)) < 1e-12);
}

TEST_CASE("packed heads are views with a gradient of their own") {
  manual_seed(2);
  const Tensor packed = randn({2, 3, 12}, kDouble).requires_grad_();
  const auto parts = split_packed_heads(packed, 2);
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor plain = packed.narrow(2, 4 * i, 4).reshape({2, 3, 2, 2}).transpose(1, 2);
    CHECK(largest_difference(parts[size_t(i)], plain) == 0);
    CHECK(largest_difference(split_heads(packed.narrow(2, 4 * i, 4), 2), plain) == 0);
  }
  CHECK(parts[2].data<const double>() == packed.data<const double>() + 8);
  const auto product = [](const std::vector<Tensor>& in) {
    const auto [q, k, v] = split_packed_heads(in[0], 2);
    return q * k * k + v * v;
  };
  CHECK(gradcheck(product, {packed}).ok);
  CHECK(gradgradcheck(product, {packed}).ok);
  const auto second = [](const std::vector<Tensor>& in) {
    return merge_heads(split_packed_heads(in[0], 2)[1]);
  };
  CHECK(gradcheck(second, {packed}).ok);
  CHECK(gradgradcheck(second, {packed}).ok);
  // Four heads of queries share one of keys and one of values.
  const auto shared = split_packed_heads(packed, 4, 1);
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t heads = i == 0 ? 4 : 1, first = i == 0 ? 0 : 2 * (3 + i);
    const Tensor plain = packed.narrow(2, first, 2 * heads);
    CHECK(largest_difference(shared[size_t(i)], split_heads(plain, heads)) == 0);
  }
  const auto grouped = [](const std::vector<Tensor>& in) {
    const auto [q, k, v] = split_packed_heads(in[0], 4, 1);
    return q * k * k + v * v;
  };
  CHECK(gradcheck(grouped, {packed}).ok);
  CHECK(gradgradcheck(grouped, {packed}).ok);
  CHECK_THROWS_WITH_AS(
      split_packed_heads(packed, 5),
      "split_packed_heads: expected a last extent divisible by 5 + 2 * 5, got [2, 3, 12]",
      ShapeError);
}

TEST_CASE("gradients through encoder layers of both kinds") {
  for (const bool norm_first : {false, true}) {
    manual_seed(3);
    nn::TransformerEncoder encoder(
        {.dim = 4,
         .heads = 2,
         .layers = 2,
         .mlp_dim = 6,
         .dropout = 0,
         .mlp = nn::MlpKind::gelu,
         .norm_placement = norm_first ? nn::NormPlacement::before : nn::NormPlacement::after_sum,
         .final_norm = norm_first});
    encoder.to(DType::float64);
    const auto run = [&](const std::vector<Tensor>& in) {
      return encoder(in[0], AttentionMask::causal());
    };
    std::vector<Tensor> inputs{randn({2, 3, 4}, kDouble).requires_grad_()};
    for (const Tensor& p : encoder.parameters()) inputs.push_back(p);
    const GradcheckReport report = gradcheck(run, inputs);
    CHECK_MESSAGE(report.ok, report.message());
  }
}

TEST_CASE("an encoder layer equals its formula, norm first or last") {
  manual_seed(4);
  const Tensor x = randn({2, 5, 8});
  for (const bool norm_first : {false, true}) {
    nn::TransformerEncoderLayer layer(
        {.dim = 8,
         .heads = 2,
         .norm_placement = norm_first ? nn::NormPlacement::before : nn::NormPlacement::after_sum});
    layer.eval();
    nn::ReLU relu;
    const auto feed = [&](const Tensor& y) { return layer.linear2(relu(layer.linear1(y))); };
    Tensor expected;
    if (norm_first) {
      const Tensor y = x + layer.self_attn(layer.norm1(x));
      expected = y + feed(layer.norm2(y));
    } else {
      const Tensor y = layer.norm1(x + layer.self_attn(x));
      expected = layer.norm2(y + feed(y));
    }
    CHECK(largest_difference(layer(x), expected) == 0);
    layer.train();
    CHECK(largest_difference(layer(x), expected) > 0.01);  // dropout 0.1
  }
}

TEST_CASE("former names of options mean what the new names mean") {
  const auto result = [](const nn::TransformerOptions& options) {
    manual_seed(9);
    nn::TransformerEncoderLayer layer(options);
    CHECK(layer.describe() == "TransformerEncoderLayer(gelu, norm first)");
    CHECK(layer.linear1.out_features() == 6);
    CHECK(layer.norm1.eps() == 1e-3);
    return layer(randn({2, 5, 8}));
  };
  const Tensor former = result({.dim = 8,
                                .heads = 2,
                                .feedforward = 6,
                                .activation = nn::MlpKind::gelu,
                                .norm_first = true,
                                .layer_norm_eps = 1e-3});
  const Tensor today = result({.dim = 8,
                               .heads = 2,
                               .mlp_dim = 6,
                               .mlp = nn::MlpKind::gelu,
                               .norm_placement = nn::NormPlacement::before,
                               .norm_eps = 1e-3});
  CHECK(largest_difference(former, today) == 0);
}

TEST_CASE("a causal model sees no later token") {
  manual_seed(5);
  nn::CausalLM lm = small_lm({.context = 6});
  const Tensor a = tensor<int64_t>({1, 2, 3, 4, 5}).view({1, 5});
  const Tensor b = tensor<int64_t>({1, 2, 3, 9, 5}).view({1, 5});
  const Tensor x = lm(a), y = lm(b);
  CHECK(x.shape() == Shape{1, 5, 11});
  CHECK(largest_difference(x.narrow(1, 0, 3), y.narrow(1, 0, 3)) == 0);
  CHECK(largest_difference(x.narrow(1, 4, 1), y.narrow(1, 4, 1)) > 0);
  // Positions matter: equal tokens give different logits.
  const Tensor same = lm(full({1, 2}, 3, {.dtype = DType::int64}));
  CHECK(largest_difference(same.narrow(1, 0, 1), same.narrow(1, 1, 1)) > 0);
  cross_entropy(x, b).backward();
  for (const auto& parameter : lm.named_parameters()) {
    CAPTURE(parameter.first);
    CHECK(parameter.second.grad().defined());
  }
}

TEST_CASE("tied weights of a causal model") {
  SmallLM wanted{.vocab = 7, .context = 4, .dim = 4, .heads = 1, .layers = 1};
  const nn::CausalLM loose = small_lm(wanted);
  wanted.tie_weights = true;
  const nn::CausalLM lm = small_lm(wanted);
  CHECK(lm.head.weight.is_same(lm.token_embedding.weight));
  CHECK(loose.num_parameters() - lm.num_parameters() == 28);
  CHECK(keys(lm) == keys(loose));
}

TEST_CASE("generation") {
  manual_seed(6);
  nn::CausalLM lm = small_lm({.context = 6, .dropout = 0.5});
  for (auto& [name, p] : lm.state_dict()) p.mul_(8);  // far from uniform
  const RandomState random = random_state();
  const std::vector<int64_t> prompt{3, 1, 4};
  const auto greedy = lm.generate(prompt, 9, {.temperature = 0});
  REQUIRE(greedy.size() == 9);
  CHECK(random_state() == random);
  CHECK(lm.is_training());
  lm.eval();
  std::vector<int64_t> text = prompt;
  for (const int64_t token : greedy) {
    const std::vector<int64_t> window(text.size() > 6 ? text.end() - 6 : text.begin(), text.end());
    const Tensor logits = lm(tensor(window, {1, int64_t(window.size())})).select(1, -1);
    const Values values = logits.to_vector<double>();
    CHECK(std::max_element(values.begin(), values.end()) - values.begin() == token);
    text.push_back(token);
  }
  CHECK(lm.generate(prompt, 9, {.top_k = 1, .seed = 5}) == greedy);
  CHECK(lm.generate(prompt, 30, {.seed = 1}) == lm.generate(prompt, 30, {.seed = 1}));
  CHECK(lm.generate(prompt, 30, {.temperature = 5, .seed = 1}) !=
        lm.generate(prompt, 30, {.temperature = 5, .seed = 2}));
  CHECK(lm.generate(prompt, 0).empty());
}

TEST_CASE("texts that a causal model writes together are what they are alone") {
  manual_seed(10);
  nn::CausalLM lm = small_lm({.context = 6});
  for (auto& [name, p] : lm.state_dict()) p.mul_(8);
  const std::vector<std::vector<int64_t>> prompts{{3, 1, 4}, {1}, {5, 9, 2, 6, 5, 3, 5}};
  const auto all = lm.generate(prompts, 9, {.temperature = 0, .stride = 2});
  for (size_t i = 0; i < prompts.size(); ++i) {
    CHECK(all[i] == lm.generate(prompts[i], 9, {.temperature = 0, .stride = 2}));
  }
}

TEST_CASE("samples follow the model's distribution") {
  manual_seed(7);
  nn::CausalLM lm({.vocab = 3, .context = 1, .dim = 4, .heads = 1, .layers = 1});
  for (auto& [name, p] : lm.state_dict()) p.mul_(10);
  const Values logits = lm(zeros({1, 1}, {.dtype = DType::int64})).to_vector<double>();
  Values expected(3);
  double total = 0;
  for (size_t i = 0; i < 3; ++i) total += expected[i] = std::exp(logits[i] / 2);
  Values seen(3, 0.0);
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    ++seen[size_t(lm.generate({0}, 1, {.temperature = 2, .seed = seed})[0])];
  }
  for (size_t i = 0; i < 3; ++i) CHECK(std::abs(seen[i] / 2000 - expected[i] / total) < 0.04);
}

TEST_CASE("wrong calls: options of transformers") {
  CHECK_THROWS_WITH_AS(nn::MultiheadAttention(10, 4),
                       "MultiheadAttention: expected dim divisible by heads, got 10 and 4",
                       ValueError);
  CHECK_THROWS_WITH_AS(nn::MultiheadAttention(8, 2, {.dropout = -0.1}),
                       "MultiheadAttention: expected dropout in [0, 1], got -0.1", ValueError);
  CHECK_THROWS_WITH_AS(nn::TransformerEncoder({.layers = 0}),
                       "TransformerEncoder: expected a positive number of layers, got 0",
                       ValueError);
  CHECK_THROWS_WITH_AS(nn::TransformerEncoderLayer({.mlp_dim = -3}),
                       "TransformerEncoderLayer: expected mlp_dim of at least 0, got -3",
                       ValueError);
  CHECK_THROWS_WITH_AS(nn::TransformerEncoderLayer({.mlp = nn::MlpKind::swiglu}),
                       "TransformerEncoderLayer: expected mlp relu, gelu or gelu_tanh, got swiglu",
                       ValueError);
  CHECK_THROWS_AS(nn::TransformerEncoderLayer({.norm_placement = nn::NormPlacement::around}),
                  ValueError);
  CHECK_THROWS_WITH_AS(nn::CausalLM({.vocab = 5}), "CausalLM: expected a positive context, got 0",
                       ValueError);
}

TEST_CASE("wrong calls: inputs of transformers") {
  nn::MultiheadAttention attention(8, 2);
  CHECK_THROWS_WITH_AS(attention(zeros({2, 3, 6})),
                       "MultiheadAttention: expected x of shape [B, S, 8], got [2, 3, 6]",
                       ShapeError);
  CHECK_THROWS_WITH_AS(
      attention(zeros({2, 3, 8}), zeros({2, 4, 8}), zeros({2, 5, 8})),
      "MultiheadAttention: expected k and v of one shape and q of their batch size, got [2, 3, 8], "
      "[2, 4, 8] and [2, 5, 8]",
      ShapeError);
  nn::CausalLM lm = small_lm({.context = 6});
  CHECK_THROWS_WITH_AS(
      lm(zeros({1, 7}, {.dtype = DType::int64})),
      "CausalLM: expected a text of at most 6 tokens, one for each position of the "
      "model, got 7 tokens (0 before and 7 new); shorten it or generate fewer",
      ShapeError);
  CHECK_THROWS_WITH_AS(lm(zeros({1, 3})), "CausalLM: expected int64 tokens, got float32",
                       DTypeError);
  CHECK_THROWS_AS(lm(full({1, 3}, 11, {.dtype = DType::int64})), IndexError);
  CHECK_THROWS_WITH_AS(lm.generate({}, 3),
                       "CausalLM.generate: expected a prompt of at least one token, got none",
                       ValueError);
  CHECK_THROWS_WITH_AS(lm.generate({1}, 3, {.temperature = -1}),
                       "CausalLM.generate: expected a temperature of at least 0, got -1",
                       ValueError);
  CHECK_THROWS_WITH_AS(lm.generate({1}, -1),
                       "CausalLM.generate: expected a count of at least 0, got -1", ValueError);
}

TEST_CASE("an encoder layer writes token by token what it computes at once") {
  nn::TransformerEncoderLayer layer({.dim = 8, .heads = 2, .dropout = 0});
  layer.to(kCPU);
  const NoGradGuard no_grad;
  const Tensor x = randn({2, 6, 8}, {.device = kCPU});
  const Tensor expected = layer(x, AttentionMask::causal());
  nn::KeyValueCache cache = layer.self_attn.new_cache(AttentionMask::causal());
  for (int64_t i = 0; i < 6; ++i) {
    const Tensor y = layer.forward(x.narrow(1, i, 1), cache);
    CHECK(largest_difference(y, expected.narrow(1, i, 1)) < 1e-5);
  }
}

TEST_CASE("a decoder layer equals its formula under masks of both attentions") {
  nn::TransformerDecoderLayer layer({.dim = 8, .heads = 2, .dropout = 0});
  layer.to(kCPU);
  const TensorOptions host{.device = kCPU};
  const Tensor x = randn({2, 5, 8}, host), memory = randn({2, 7, 8}, host);
  const AttentionMask causal = AttentionMask::causal(), window = AttentionMask::window(3, 1);
  const Tensor y = layer.norm1(x + layer.self_attn(x, causal));
  const Tensor z = layer.norm2(y + (*layer.multihead_attn)(y, memory, memory, window));
  nn::ReLU relu;
  const Tensor expected = (*layer.norm3)(z + layer.linear2(relu(layer.linear1(z))));
  CHECK(largest_difference(layer.forward(x, memory, causal, window), expected) < 1e-5);
  CHECK(largest_difference(layer.forward(x, memory), expected) > 1e-3);
}
