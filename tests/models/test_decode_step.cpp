// Steps that are recorded and replayed have the bits of steps that are called.
#include <doctest/doctest.h>

#include <sash/nn/models/decode_step.h>
#include <sash/nn/models/decoder.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Tokens = std::vector<int64_t>;

// Heads of 16 features, so that a card has a kernel for them.
nn::TransformerConfig windowed_for_cards() {
  SmallTransformer wanted = windowed();
  wanted.dim = 32;
  wanted.head_dim = 16;
  wanted.mlp_dim = 48;
  wanted.init_std = 0.3;
  return small_config(wanted);
}

struct Texts {
  Texts(nn::Decoder& model, const std::vector<Tokens>& prompts) {
    while (caches.size() < prompts.size()) caches.push_back(model.new_caches());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto length = static_cast<int64_t>(prompts[i].size());
      model.next_logits(tensor(prompts[i], {1, length}, {.device = device(model)}), {&caches[i]});
    }
  }
  static Device device(const nn::Decoder& model) { return model.token_embedding.weight.device(); }
  nn::DecodeStep::Texts pointers() {
    nn::DecodeStep::Texts all;
    for (std::vector<nn::KeyValueCache>& text : caches) all.push_back(&text);
    return all;
  }

  std::vector<std::vector<nn::KeyValueCache>> caches;
};

// What eager passes and recorded steps give for the same tokens.
void check_bits(nn::Decoder& model, const std::vector<Tokens>& prompts, int64_t steps) {
  const NoGradGuard no_grad;
  model.eval();
  Texts eager(model, prompts), recorded(model, prompts);
  nn::DecodeStep step(model, recorded.pointers());
  const Device device = Texts::device(model);
  const auto rows = static_cast<int64_t>(prompts.size());
  Tokens tokens(prompts.size(), 1);
  for (int64_t i = 0; i < steps; ++i) {
    const Tensor expected =
        model.next_logits(tensor(tokens, {rows, 1}, {.device = device}), eager.pointers());
    const Tensor found = step(tokens);
    REQUIRE(all_same(found.to(kCPU), expected.to(kCPU)));
    if (device.is_cuda() && i > 0) {
      REQUIRE(step.reason() == "");
    } else {
      REQUIRE(step.reason() != "");
    }
    // Its own choice, and sometimes another.
    tokens = step.likeliest();
    CHECK(tokens == expected.argmax(-1).to_vector<int64_t>());
    if (i % 5 == 3) tokens[0] = (tokens[0] + 1) % 13;
  }
  // Once, and again when a text's caches, of 32 slots at first, have grown; tables grow then too.
  CHECK(step.captures() >= (device.is_cuda() ? 2 : 0));
  CHECK(step.captures() <= (device.is_cuda() ? 1 + 2 * rows : 0));
}

}  // namespace

TEST_CASE_TEMPLATE("decode step: replays have the bits of passes, past windows and growing caches",
                   On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  nn::Decoder model(windowed_for_cards());
  model.to(On::device);
  check_bits(model, {{3, 1, 4, 1, 5, 9, 2, 6}}, 80);
  check_bits(model, {{3, 1, 4}, {7}, {2, 7, 1, 8}}, 80);
  model.bfloat16();
  check_bits(model, {{3, 1, 4}}, 80);
}

TEST_CASE_TEMPLATE("decode step: norms of queries and keys, learnt positions, sink logits", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(2);
  nn::TransformerConfig normed = windowed_for_cards();
  normed.qk_norm = nn::QKNorm::per_head;
  normed.norm_placement = nn::NormPlacement::around;
  normed.sink_logits = true;
  normed.attn_softcap = 3;
  nn::TransformerConfig learnt = windowed_for_cards();
  learnt.max_positions = 90;
  for (nn::LayerAttention& layer : learnt.attention) layer.rotary.reset();
  for (const nn::TransformerConfig& config : {normed, learnt}) {
    nn::Decoder model(config);
    model.to(On::device);
    check_bits(model, {{3, 1, 4}, {7}}, 70);
  }
}

TEST_CASE_TEMPLATE("decode step: generation with and without recording is the same", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(3);
  nn::Decoder model(windowed_for_cards());
  model.to(On::device);
  for (const double temperature : {0.0, 1.0}) {
    nn::GenerateOptions options{.temperature = temperature, .seed = 5};
    const std::vector<Tokens> prompts{{3, 1, 4}, {7}};
    const auto recorded = model.generate(prompts, 70, options);
    options.capture = false;
    CHECK(recorded == model.generate(prompts, 70, options));
  }
}

TEST_CASE_TEMPLATE("decode step: what cannot be recorded runs as a pass", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const NoGradGuard no_grad;
  nn::TransformerConfig config = windowed_for_cards();
  config.attention[0].rotary->scaling = {
      .kind = nn::RotaryScalingKind::dynamic_ntk, .factor = 2, .original_context = 8};
  nn::Decoder model(config);
  model.to(On::device).eval();
  Texts texts(model, {{3, 1, 4}});
  nn::DecodeStep step(model, texts.pointers());
  for (int i = 0; i < 4; ++i) step({1});
  CHECK(step.captures() == 0);
  if (!On::device.is_cuda()) return;
  CHECK(step.reason() == "rotary frequencies depend on the length of the text");
  nn::Decoder other(windowed_for_cards());
  other.to(On::device).eval();
  Texts own(other, {{3, 1, 4}});
  nn::DecodeStep eager(other, own.pointers(), false);
  for (int i = 0; i < 4; ++i) eager({1});
  CHECK(eager.reason() == "capture is false");
}

TEST_CASE_TEMPLATE("decode step: positions that are used up are an error", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const NoGradGuard no_grad;
  nn::TransformerConfig config = windowed_for_cards();
  config.max_positions = 7;
  nn::Decoder model(config);
  model.to(On::device).eval();
  Texts texts(model, {{3, 1, 4}});
  nn::DecodeStep step(model, texts.pointers());
  for (int i = 0; i < 4; ++i) step({1});
  expect_error<ShapeError>(
      "Decoder: expected a text of at most 7 tokens, one for each position of the "
      "model, got 8 tokens (7 before and 1 new); shorten it or generate fewer",
      [&] { step({1}); });
}

TEST_CASE_TEMPLATE("decode step: memory is flat under windows", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  nn::TransformerConfig config = windowed_for_cards();
  config.attention[2].mask = AttentionMask::causal_window(8);
  nn::Decoder model(config);
  model.to(On::device).bfloat16();
  const Tokens prompt{3, 1, 4};
  std::vector<int64_t> bytes;
  const int64_t count = short_tests() ? 40 : 1000;
  model.generate(prompt, count, {.temperature = 0, .on_token = [&](int64_t, int64_t) {
                                   bytes.push_back(memory_stats(On::device).current);
                                   return true;
                                 }});
  // The tables of angles grow, 64 bytes a token.
  CHECK(bytes.back() - bytes[20] < 200000);
}
