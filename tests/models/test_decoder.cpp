#include <doctest/doctest.h>
#include <sash/nn/models/decode_step.h>
#include <sash/nn/models/decoder.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/shape/concat.h>
#include <sash/tensor/autograd/autocast.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"

/// What the parity of model families does not show of `Decoder` and its parts.
using namespace sash;
using namespace sash::testing;

namespace {

nn::TransformerConfig small() { return small_config({.dim = 8, .mlp_dim = 12}); }

Tensor some_tokens() { return tensor<int64_t>({1, 5, 0, 12, 7, 7, 3, 9, 2, 4}, {2, 5}); }

// The weights of a packed model by the names of one that is not.
StateDict unpacked(const nn::Decoder& model) {
  StateDict state;
  for (const auto& entry : model.state_dict()) {
    const std::string& name = entry.first;
    const Tensor& tensor = entry.second;
    const auto split = [&](const std::string& packed, const std::vector<std::string>& parts,
                           const std::vector<int64_t>& rows) {
      const size_t at = name.find(packed);
      if (at == std::string::npos) return false;
      int64_t row = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        std::string part = name;
        part.replace(at, packed.size(), parts[i]);
        state.emplace_back(part, tensor.narrow(0, row, rows[i]));
        row += rows[i];
      }
      return true;
    };
    if (split("qkv_proj", {"q_proj", "k_proj", "v_proj"}, {8, 4, 4})) continue;
    if (split("gate_up_proj", {"gate_proj", "up_proj"}, {12, 12})) continue;
    state.emplace_back(name, tensor);
  }
  return state;
}

}  // namespace

TEST_CASE("Decoder: separate projections compute what packed ones do") {
  manual_seed(1);
  nn::TransformerConfig config = small();
  config.qkv_bias = config.mlp_bias = true;
  nn::Decoder packed(config);
  config.packed = false;
  nn::Decoder separate(config);
  separate.load_state_dict(unpacked(packed));
  CHECK(relative_error(separate(some_tokens()), packed(some_tokens())) <= 1e-6);
}

TEST_CASE("Decoder: positions are rotary unless the configuration says otherwise") {
  const NoGradGuard no_grad;
  const auto logits = [](const nn::TransformerConfig& config) {
    manual_seed(1);
    return nn::Decoder(config)(some_tokens());
  };
  nn::TransformerConfig said = small(), unsaid = small(), none = small(), learnt = small();
  for (nn::TransformerConfig* const config : {&unsaid, &none, &learnt}) {
    config->attention = {{.mask = AttentionMask::causal_window(9)}, {}};
  }
  none.no_positions = true;
  learnt.max_positions = 5;
  CHECK(relative_error(logits(unsaid), logits(said)) <= 1e-6);
  CHECK(relative_error(logits(none), logits(said)) > 1e-2);
  CHECK(nn::Decoder(unsaid).config().attention[1].rotary.has_value());
  CHECK(!nn::Decoder(none).config().attention[0].rotary.has_value());
  CHECK(!nn::Decoder(learnt).config().attention[0].rotary.has_value());
  said.no_positions = learnt.no_positions = true;
  for (const nn::TransformerConfig& config : {said, learnt}) {
    expect_error<ValueError>(
        "Decoder: expected no_positions, or max_positions or rotary in attention, got both",
        [&] { nn::Decoder model(config); });
  }
}

TEST_CASE("Decoder: parallel branches read the same stream") {
  for (const nn::Branches branches : {nn::Branches::parallel, nn::Branches::parallel_one_norm}) {
    manual_seed(2);
    nn::TransformerConfig config = small();
    config.branches = branches;
    nn::Decoder model(config);
    const nn::AttentionContext context{.mask = AttentionMask::causal()};
    nn::Block& layer = model.layers[0];
    CHECK((layer.mlp_norm == nullptr) == (branches == nn::Branches::parallel_one_norm));
    const Tensor x = randn({2, 5, 8}), normed = (*layer.attn_norm)(x);
    const Tensor to_mlp = layer.mlp_norm ? (*layer.mlp_norm)(x) : normed;
    const Tensor want = x + layer.self_attn(normed, context) + layer.mlp(to_mlp);
    CHECK(relative_error(layer(x, context), want) <= 1e-6);
  }
}

TEST_CASE("Decoder: hooks see the modules, and change nothing by themselves") {
  manual_seed(3);
  nn::TransformerConfig config = small();
  config.norm_placement = nn::NormPlacement::around;
  config.max_positions = 6;
  config.token_types = 2;
  nn::Decoder model(config);
  const Tensor want = model(some_tokens());
  int calls = 0;
  const auto count = [&](const nn::Module&, std::span<const Tensor>, const Tensor&) {
    ++calls;
    return Tensor();
  };
  for (const auto& [name, module] : model.named_modules()) {
    if (!name.empty() && name != "layers") module->register_forward_hook(count);
  }
  CHECK(relative_error(model(some_tokens()), want) <= 1e-6);
  CHECK(calls == 4 + 2 * (1 + 4 + 1 + 2 + 1 + 2) + 1);  // embeddings, head, layers, norm
}

TEST_CASE("Decoder: caches of tokens in pieces, a window, halves") {
  manual_seed(4);
  nn::TransformerConfig config = small();
  config.attention[0].mask = AttentionMask::causal_window(3) | AttentionMask::sinks(1);
  config.attention.push_back({{}, nn::RotaryOptions{}});
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    nn::Decoder model(config);
    model.to(dtype);
    const NoGradGuard no_grad;
    const Tensor tokens = some_tokens(), want = model(tokens);
    auto caches = model.new_caches();
    std::vector<Tensor> parts;
    for (const auto& [first, count] : {std::pair{0, 2}, {2, 2}, {4, 1}}) {
      parts.push_back(model(tokens.narrow(1, first, count), caches));
    }
    CHECK(relative_error(cat(parts, 1), want) <= (dtype == DType::float32 ? 1e-5 : 3e-2));
  }
}

TEST_CASE("Decoder: norms of q and k, and caches, under autocast") {
  manual_seed(6);
  for (const nn::QKNorm norm : {nn::QKNorm::per_head, nn::QKNorm::all_heads}) {
    nn::TransformerConfig config = small();
    config.qk_norm = norm;
    nn::Decoder model(config);
    const NoGradGuard no_grad;
    const Tensor tokens = some_tokens(), want = model(tokens);
    const AutocastGuard autocast(DType::bfloat16);
    auto caches = model.new_caches();
    model(tokens.narrow(1, 0, 3), caches);
    const Tensor got = model(tokens.narrow(1, 3, 2), caches);
    CHECK(relative_error(got, want.narrow(1, 3, 2)) <= 5e-2);
  }
}

TEST_CASE("Decoder: dropout drops while training only, and repeats with the seed") {
  nn::TransformerConfig config = small();
  config.dropout = config.attn_dropout = 0.3;
  nn::Decoder model(config);
  const auto run = [&] {
    manual_seed(5);
    return model(some_tokens());
  };
  CHECK(all_same(run(), run()));
  const Tensor trained = run();
  model.eval();
  CHECK(relative_error(trained, run()) > 1e-2);
  CHECK(all_same(model(some_tokens()), model(some_tokens())));
}

TEST_CASE("wrong calls: Decoder") {
  const auto with = [](auto change) {
    return [change] {
      nn::TransformerConfig config = small();
      change(config);
      nn::Decoder model(config);
    };
  };
  const std::string op = "Decoder: expected ";
  expect_error<ValueError>(op + "a positive vocab, got 0", with([](auto& c) { c.vocab = 0; }));
  expect_error<ValueError>(op + "dim divisible by heads, or a head_dim, got 9 and 4",
                           with([](auto& c) { c.dim = 9; }));
  expect_error<ValueError>(op + "heads divisible by kv_heads, got 4 and 3",
                           with([](auto& c) { c.kv_heads = 3; }));
  expect_error<ValueError>(op + "norm_eps > 0, got 0", with([](auto& c) { c.norm_eps = 0; }));
  expect_error<ValueError>(op + "attention of at least one layer, got none",
                           with([](auto& c) { c.attention.clear(); }));
  CHECK_THROWS_AS(with([](auto& c) {
                    c.branches = nn::Branches::parallel;
                    c.norm_placement = nn::NormPlacement::after;
                  })(),
                  ValueError);
  nn::TransformerConfig config = small();
  config.max_positions = 4;
  nn::Decoder model(config);
  CHECK_THROWS_AS(model(some_tokens()), ShapeError);
  CHECK_THROWS_AS(model(zeros({2, 3})), DTypeError);
  CHECK_THROWS_AS(model(tensor<int64_t>({1, 13}, {1, 2})), IndexError);
  CHECK_THROWS_AS(model.cross_keys(zeros({1, 2, 8})), ValueError);

  const NoGradGuard no_grad;
  const Tensor token = tensor<int64_t>({1, 2}, {2, 1});
  std::vector<nn::KeyValueCache> own = model.new_caches(), others;
  for (size_t i = 0; i < own.size(); ++i) others.emplace_back(AttentionMask::causal_window(1));
  expect_error<ValueError>(
      "Decoder: expected caches of its own for each text, got the same for two", [&] {
        model.next_logits(token, {&own, &own});
      });
  CHECK(own[0].length() == 0);
  CHECK_THROWS_AS(model(token, others), ValueError);
  CHECK_THROWS_AS(nn::DecodeStep(model, {}), ValueError);
}
