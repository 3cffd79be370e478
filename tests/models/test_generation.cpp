#include <doctest/doctest.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/decoder.h>
#include <sash/nn/models/encoder_decoder.h>
#include <sash/ops/norm/softmax.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;
using nn::GenerateOptions;

namespace {

using Tokens = std::vector<int64_t>;

/// The tokens that these options draw from the logits, over many seeds.
std::set<int64_t> drawn(const std::vector<double>& logits, GenerateOptions options,
                        const Tokens& prompt = {0}) {
  std::set<int64_t> tokens;
  for (options.seed = 0; options.seed < 400; ++options.seed) {
    nn::TokenSampler sampler("test", prompt, 0, 1, options);
    sampler.append(logits);
    tokens.insert(sampler.new_tokens().at(0));
  }
  return tokens;
}

/// The likeliest tokens, each from a whole forward pass.
Tokens greedy_by_passes(nn::Decoder& model, Tokens text, int64_t count) {
  const NoGradGuard no_grad;
  Tokens result;
  for (int64_t i = 0; i < count; ++i) {
    const Device device = model.token_embedding.weight.device();
    const Tensor tokens = tensor(text, {1, int64_t(text.size())}, {.device = device});
    const Tensor logits = model(tokens).select(1, -1);
    result.push_back(logits.argmax().item<int64_t>());
    text.push_back(result.back());
  }
  return result;
}

}  // namespace

TEST_CASE("generation: each option keeps the tokens that it says") {
  // Probabilities 0.5, 0.25, 0.125, 0.0625 twice.
  const std::vector<double> logits{std::log(0.25), std::log(0.5), std::log(0.0625), std::log(0.125),
                                   std::log(0.0625)};
  using Set = std::set<int64_t>;
  CHECK(drawn(logits, {}) == Set{0, 1, 2, 3, 4});
  CHECK(drawn(logits, {.temperature = 0}) == Set{1});
  CHECK(drawn(logits, {.top_k = 1}) == Set{1});
  CHECK(drawn(logits, {.top_k = 3}) == Set{0, 1, 3});
  CHECK(drawn(logits, {.top_k = 4}) == Set{0, 1, 2, 3});  // of equal ones the first
  CHECK(drawn(logits, {.top_k = 9}) == Set{0, 1, 2, 3, 4});
  CHECK(drawn(logits, {.top_p = 0}) == Set{1});
  CHECK(drawn(logits, {.top_p = 0.49}) == Set{1});
  CHECK(drawn(logits, {.top_p = 0.51}) == Set{0, 1});
  CHECK(drawn(logits, {.top_p = 0.76}) == Set{0, 1, 3});
  CHECK(drawn(logits, {.min_p = 0.3}) == Set{0, 1});
  CHECK(drawn(logits, {.min_p = 0.2}) == Set{0, 1, 3});
  // After top_k, the two have 2/3 and 1/3.
  CHECK(drawn(logits, {.top_k = 2, .top_p = 0.6}) == Set{1});
  // Half the temperature squares probabilities: 0.735 for the first, 0.92 for two.
  CHECK(drawn(logits, {.temperature = 0.5, .top_p = 0.7}) == Set{1});
  CHECK(drawn(logits, {.temperature = 0.5, .top_p = 0.9}) == Set{0, 1});
  // Logits log(1/2) and log(1/4) are negative, hence multiplied by 3: 1/8 is likelier than 1/64.
  CHECK(drawn(logits, {.temperature = 0, .repetition_penalty = 3}, {1, 0, 1}) == Set{1});
  CHECK(drawn({1, 3, 2}, {.temperature = 0, .repetition_penalty = 2}, {1}) == Set{2});
  CHECK(drawn({1, 3, 2}, {.temperature = 0, .repetition_penalty = 1.1}, {1}) == Set{1});
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(drawn({-inf, 0, -inf}, {}) == Set{1});
  CHECK(drawn({0, inf, 5}, {}) == Set{1});
  CHECK(drawn({0, inf, inf}, {.top_p = 0.9}) == Set{1, 2});
  for (const double temperature : {0.0, 1.0}) {
    expect_error<ValueError>("TokenSampler: expected a logit above -inf, got none", [&] {
      drawn({-inf, -inf}, {.temperature = temperature});
    });
  }
}

TEST_CASE("generation: draws have the options' probabilities") {
  const std::vector<double> logits{1, 3, 2, 0};
  GenerateOptions options{.temperature = 2, .top_k = 3};
  std::vector<double> seen(4);
  for (options.seed = 0; options.seed < 4000; ++options.seed) {
    nn::TokenSampler sampler("test", {0}, 0, 1, options);
    sampler.append(logits);
    ++seen[size_t(sampler.new_tokens()[0])];
  }
  const double total = std::exp(0.5) + std::exp(1.5) + std::exp(1.0);
  CHECK(std::abs(seen[0] / 4000 - std::exp(0.5) / total) < 0.03);
  CHECK(std::abs(seen[1] / 4000 - std::exp(1.5) / total) < 0.03);
  CHECK(std::abs(seen[2] / 4000 - std::exp(1.0) / total) < 0.03);
  CHECK(seen[3] == 0);
}

TEST_CASE_TEMPLATE("generation: windows, sinks and full layers through caches, past the window", On,
                   Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  nn::Decoder model(small_config(windowed()));
  model.to(On::device).eval();
  const Tokens prompt{3, 1, 4, 1, 5, 9, 2, 6};
  const Tokens greedy = greedy_by_passes(model, prompt, 20);
  CHECK(std::set<int64_t>(greedy.begin(), greedy.end()).size() > 2);
  model.train();
  CHECK(model.generate(prompt, 20, {.temperature = 0}) == greedy);
  CHECK(model.is_training());
  CHECK(model.generate(prompt, 20, {.seed = 3}) == model.generate(prompt, 20, {.seed = 3}));
  CHECK(model.generate(prompt, 20, {.seed = 3}) != model.generate(prompt, 20, {.seed = 4}));
  CHECK(model.generate(prompt, 0).empty());
}

TEST_CASE_TEMPLATE("generation: prompts of different lengths together are each what they are alone",
                   On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const bool learnt : {false, true}) {
    manual_seed(2);
    nn::TransformerConfig config = small_config(windowed());
    if (learnt) {
      config.max_positions = 40;
      for (nn::LayerAttention& layer : config.attention) layer.rotary.reset();
    }
    nn::Decoder model(config);
    model.to(On::device);
    const std::vector<Tokens> prompts{{3, 1, 4}, {7}, {2, 7, 1, 8, 2, 8, 1, 8, 2, 8}, {3, 1, 4}};
    const auto together = model.generate(prompts, 12, {.temperature = 0});
    REQUIRE(together.size() == 4);
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(together[i] == model.generate(prompts[i], 12, {.temperature = 0}));
      CHECK(together[i].size() == 12);
    }
    const auto sampled = model.generate(prompts, 12, {.seed = 5});
    CHECK(sampled[0] == model.generate(prompts[0], 12, {.seed = 5}));
    CHECK(sampled[0] != sampled[3]);  // its own numbers
  }
}

TEST_CASE("generation: longrope's long factors turn the whole text, at any length of prompt") {
  manual_seed(6);
  nn::RotaryScaling scaling{
      .kind = nn::RotaryScalingKind::longrope, .factor = 4, .original_context = 12};
  scaling.short_factor = {1, 1.1};
  scaling.long_factor = {1.5, 6};
  nn::TransformerConfig config = small_config(windowed());
  for (nn::LayerAttention& layer : config.attention) layer.rotary->scaling = scaling;
  nn::Decoder model(config);
  model.eval();
  std::vector<Tokens> prompts, expected;
  for (const int64_t length : {3, 8, 11, 12, 13, 20}) {
    Tokens prompt;
    for (int64_t i = 0; i < length; ++i) prompt.push_back((7 * i + length) % 13);
    prompts.push_back(prompt);
    expected.push_back(greedy_by_passes(model, prompt, 15));
    CHECK(model.generate(prompt, 15, {.temperature = 0}) == expected.back());
  }
  CHECK(model.generate(prompts, 15, {.temperature = 0}) == expected);
}

TEST_CASE("generation: stop tokens and callbacks end a text, and only that") {
  manual_seed(3);
  nn::Decoder model(small_config(windowed()));
  const std::vector<Tokens> prompts{{3, 1, 4}, {7}};
  const auto all = model.generate(prompts, 10, {.seed = 1});
  const int64_t stop = all[0][4];
  const auto stopped = model.generate(prompts, 10, {.seed = 1, .stop_tokens = {stop}});
  const auto cut = [stop](const Tokens& tokens) {
    const auto at = std::find(tokens.begin(), tokens.end(), stop);
    return Tokens(tokens.begin(), at == tokens.end() ? at : at + 1);
  };
  CHECK(stopped[0] == cut(all[0]));
  CHECK(stopped[0].size() <= 5);
  CHECK(stopped[1] == cut(all[1]));
  std::vector<Tokens> heard(2);
  const auto called =
      model.generate(prompts, 10, {.seed = 1, .on_token = [&](int64_t token, int64_t prompt) {
                                     heard[size_t(prompt)].push_back(token);
                                     return prompt == 0 || heard[1].size() < 3;
                                   }});
  CHECK(called == heard);
  CHECK(called[0] == all[0]);
  CHECK(called[1] == Tokens(all[1].begin(), all[1].begin() + 3));
}

TEST_CASE("generation: wrong calls") {
  nn::Decoder model(small_config(windowed()));
  const auto call = [&model](const GenerateOptions& options) {
    return [&model, options] { model.generate(Tokens{1}, 2, options); };
  };
  const std::string op = "ValueError: Decoder.generate: expected ";
  expect_errors({
      {op + "a prompt of at least one token, got none", [&] { model.generate(Tokens(), 2); }},
      {op + "a count of at least 0, got -1", [&] { model.generate(Tokens{1}, -1); }},
      {op + "a temperature of at least 0, got -1", call({.temperature = -1})},
      {op + "top_k of at least 0, got -1", call({.top_k = -1})},
      {op + "top_p in [0, 1], got 2", call({.top_p = 2})},
      {op + "min_p in [0, 1], got -0.5", call({.min_p = -0.5})},
      {op + "a repetition_penalty above 0, got 0", call({.repetition_penalty = 0})},
      {"IndexError: Decoder.generate: expected tokens in [0, 13), got 13",
       [&] {
         model.generate(Tokens{1, 13}, 2);
       }},
      {"IndexError: CausalLM.generate: expected tokens in [0, 13), got 1000000",
       [] {
         // Of a prompt longer than the context, the first token is not read.
         nn::CausalLM old({.vocab = 13, .context = 3, .dim = 8, .heads = 2, .layers = 1});
         old.generate({1000000, 1, 2, 3}, 1, {.repetition_penalty = 1.2});
       }},
      {"ShapeError: Decoder: expected a text of at most 5 tokens, one for each position of the "
       "model, got 6 tokens (5 before and 1 new); shorten it or generate fewer",
       [] {
         nn::TransformerConfig config = small_config(windowed());
         config.max_positions = 5;
         nn::Decoder(config).generate(Tokens{1, 2, 3}, 9);
       }},
      {"IndexError: TokenSampler: expected tokens in [0, 2), got 50",
       [] {
         const GenerateOptions options{.repetition_penalty = 2};
         nn::TokenSampler("test", {50}, 0, 1, options).append({0, 1});
       }},
      {"ValueError: TokenSampler: expected logits of at least one token, got none",
       [] { nn::TokenSampler("test", {0}, 0, 1, {}).append({}); }},
      {"ValueError: TokenSampler: expected logits that are numbers, got NaN",
       [] {
         const GenerateOptions options;
         nn::TokenSampler("test", {0}, 0, 1, options).append({0, NAN});
       }},
  });
}

namespace {

/// The best of all texts after `prompt`, where each ends with a stop token or after `count` tokens,
/// by whole forward passes.
struct BestText {
  std::function<Tensor(const Tokens&)> logits;  // [vocab]
  int64_t count, stop;
  double length_penalty;
  Tokens best{};
  double score = -std::numeric_limits<double>::infinity();

  void search(const Tokens& text, size_t prompt, double sum) {
    const auto length = static_cast<double>(text.size() - prompt);
    if (text.size() > prompt &&
        (text.back() == stop || text.size() - prompt == static_cast<size_t>(count))) {
      const double value = sum / std::pow(length, length_penalty);
      if (value <= score) return;
      score = value;
      best = Tokens(text.begin() + static_cast<std::ptrdiff_t>(prompt), text.end());
      return;
    }
    const std::vector<double> probabilities =
        log_softmax(logits(text).to(DType::float64)).to_vector<double>();
    for (size_t token = 0; token < probabilities.size(); ++token) {
      Tokens longer = text;
      longer.push_back(static_cast<int64_t>(token));
      search(longer, prompt, sum + probabilities[token]);
    }
  }
};

void check_all_beams(Device device) {
  const NoGradGuard no_grad;
  manual_seed(9);
  nn::TransformerConfig config = small_config(windowed());
  config.vocab = 4;
  nn::Decoder model(config);
  nn::Transformer translator(small_config({.vocab = 7}), small_config({.vocab = 4}));
  for (nn::Module* m : std::vector<nn::Module*>{&model, &translator}) m->to(device).eval();
  const auto row = [device](const Tokens& tokens) {
    return tensor(tokens, {1, int64_t(tokens.size())}, {.device = device});
  };
  const Tokens source{6, 2, 5, 1};
  const auto of_model = [&](const Tokens& text) { return model(row(text)).select(1, -1)[0]; };
  const auto of_translator = [&](const Tokens& text) {
    return translator(row(source), row(text)).select(1, -1)[0];
  };
  int stopped = 0;
  for (const int64_t start : {0, 1, 2}) {
    for (const double penalty : {0.0, 1.0, 2.0}) {
      CAPTURE(start);
      CAPTURE(penalty);
      const GenerateOptions options{.beams = 64, .length_penalty = penalty, .stop_tokens = {start}};
      const Tokens prompt{start, 3, 2};
      BestText decoder{of_model, 4, start, penalty}, target{of_translator, 4, start, penalty};
      decoder.search(prompt, 3, 0);
      CHECK(model.generate(prompt, 4, options) == decoder.best);
      target.search(prompt, 3, 0);
      CHECK(translator.generate(source, prompt, 4, options) == target.best);
      stopped += decoder.best.back() == start;
    }
  }
  CHECK(stopped > 0);
}

}  // namespace

TEST_CASE_TEMPLATE("generation: as many beams as there are texts find the best one", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_all_beams(On::device);
}

TEST_CASE("generation: beams without caches, with few beams and of several prompts") {
  const NoGradGuard no_grad;
  manual_seed(4);
  nn::Decoder model(small_config(windowed()));
  nn::CausalLM plain(
      {.vocab = 13, .context = 32, .dim = 8, .heads = 2, .attention = "causal_linear"});
  for (Tensor p : plain.parameters()) p.mul_(8);
  CHECK(!plain.can_cache());
  const std::vector<Tokens> prompts{{3, 1, 4, 1, 5}, {9}};
  for (nn::LanguageModel* lm : std::vector<nn::LanguageModel*>{&model, &plain}) {
    const auto score = [&](const Tokens& prompt, const Tokens& tokens) {
      Tokens text = prompt;
      text.insert(text.end(), tokens.begin(), tokens.end());
      const Tensor all = log_softmax((*lm)(tensor(text, {1, int64_t(text.size())})))[0];
      double sum = 0;
      for (size_t i = prompt.size(); i < text.size(); ++i) {
        sum += all[int64_t(i) - 1][text[i]].item<double>();
      }
      return sum;
    };
    const auto found = lm->generate(prompts, 8, {.beams = 5});
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(found[i] == lm->generate(prompts[i], 8, {.beams = 5}));
      CHECK(found[i].size() == 8);
      const Tokens greedy = lm->generate(prompts[i], 8, {.temperature = 0});
      CHECK(score(prompts[i], found[i]) >= score(prompts[i], greedy));
    }
    CHECK(lm->generate(prompts[0], 0, {.beams = 5}).empty());
  }
}

TEST_CASE("generation: an encoder-decoder writes as its forward passes do") {
  const NoGradGuard no_grad;
  manual_seed(8);
  nn::Transformer model(small_config(), small_config({.masks = {AttentionMask::causal_window(3)}}));
  const Tokens source{1, 5, 0, 12}, prompt{2};
  const Tokens greedy = model.generate(source, prompt, 9, {.temperature = 0});
  Tokens text = prompt;
  model.eval();
  for (const int64_t token : greedy) {
    const Tensor logits =
        model(tensor(source, {1, 4}), tensor(text, {1, int64_t(text.size())})).select(1, -1);
    CHECK(logits.argmax().item<int64_t>() == token);
    text.push_back(token);
  }
  CHECK(greedy.size() == 9);
  CHECK(model.generate(source, prompt, 9, {.seed = 1}) ==
        model.generate(source, prompt, 9, {.seed = 1}));
  CHECK(model.generate(source, prompt, 9, {.temperature = 0, .stop_tokens = {greedy[3]}}).size() <=
        4);
  const std::string op = "Transformer.generate: expected ";
  nn::TransformerCache cache = model.new_cache(
      tensor(source, {1, 4}), AttentionMask::key_lengths(tensor<int32_t>({3}, {1})));
  expect_errors({
      {"ValueError: " + op + "a source of at least one token, got none",
       [&] { model.generate({}, prompt, 1); }},
      {"ValueError: " + op + "a prompt of at least one token, got none",
       [&] { model.generate(source, {}, 1); }},
      {"IndexError: " + op + "tokens in [0, 13), got 13", [&] { model.generate({13}, prompt, 1); }},
      {"ValueError: " + op + "a positive number of beams, got 0",
       [&] { model.generate(source, prompt, 1, {.beams = 0}); }},
      {"ValueError: " + op + "no top_k, top_p, min_p and on_token with beams, got one of them",
       [&] { model.generate(source, prompt, 1, {.top_k = 3, .beams = 2}); }},
  });
  CHECK(thrown_by([&] {
          cache.reorder({0, 0});
        }).starts_with("ValueError: TransformerCache.reorder: expected a source without a mask"));
}
