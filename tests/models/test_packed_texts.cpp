// Texts that are packed one after the other are what they are alone, wherever they stand.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include <sash/nn/attention/rotary.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/decoder.h>
#include <sash/ops/attention/mask/text_positions.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/ops/shape/concat.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/sgd.h>
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

constexpr int64_t kVocab = 13, kTokens = 16, kLongest = 7;

const std::vector<int> kLengths{5, 1, kLongest, 3};

Tensor int32s(const std::vector<int>& values, Device device = kCPU) {
  return tensor(values, {std::ssize(values)}, {.device = device});
}

Tensor starts(Device device, const std::vector<int>& lengths = kLengths) {
  std::vector<int> ends{0};
  for (const int length : lengths) ends.push_back(ends.back() + length);
  return int32s(ends, device);
}

Tensor tokens(Device device) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < kTokens; ++i) all.push_back((i * i + 5 * i + 3) % kVocab);
  return tensor(all, {1, kTokens}, {.device = device});
}

// The sum over tokens of what a model makes of them, which each call weighs differently.
using Sum =
    std::function<Tensor(const Tensor& tokens, const Tensor& weights, const AttentionMask&)>;

struct Candidate {
  const char* name;
  std::shared_ptr<nn::Module> model;
  Sum sum;
};

template <class Model>
Candidate candidate(const char* name, Model made, Device device) {
  const auto model = std::make_shared<Model>(std::move(made));
  for (const Tensor& p : model->parameters()) p.detach().mul_(8);  // positions count
  model->to(device, DType::float64);
  return {name, model, [model](const Tensor& x, const Tensor& weights, const AttentionMask& mask) {
            return ((*model)(x, mask) * weights).sum();
          }};
}

nn::TransformerConfig config_of(int64_t max_positions) {
  return small_config({.vocab = kVocab,
                       .dim = 8,
                       .heads = 2,
                       .mlp_dim = 12,
                       .rotary = false,
                       .max_positions = max_positions,
                       .init_std = 0.06});
}

std::vector<Candidate> candidates(Device device) {
  manual_seed(3);
  const nn::CausalLMOptions lm = small_options({.vocab = kVocab, .context = kTokens});
  nn::CausalLMOptions local = lm;
  local.context = kLongest;  // fewer than a packed row has
  local.layer_masks = {AttentionMask::causal_window(3), AttentionMask()};
  nn::TransformerConfig rotary = config_of(kTokens), bert = config_of(kLongest);
  rotary.attention = {{.mask = AttentionMask::causal_window(4), .rotary = nn::RotaryOptions{}}, {}};
  bert.token_types = 2;
  bert.embedding_norm = true;
  bert.norm_placement = nn::NormPlacement::after_sum;
  return {
      candidate("CausalLM", nn::CausalLM(lm), device),
      candidate("CausalLM, local", nn::CausalLM(local), device),
      candidate("Decoder", nn::Decoder(config_of(kTokens)), device),
      candidate("Decoder, rotary and learnt", nn::Decoder(rotary), device),
      candidate("Encoder", nn::Encoder(bert), device),
  };
}

std::vector<Tensor> gradients(const nn::Module& model) {
  std::vector<Tensor> all;
  for (const Tensor& p : model.parameters()) all.push_back(p.grad().clone());
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("packed texts: values and gradients are those of the texts one by one", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  for (const Candidate& c : candidates(On::device)) {
    CAPTURE(c.name);
    const Tensor all = tokens(On::device);
    const Tensor weights =
        randn({1, kTokens, kVocab}, {.dtype = DType::float64, .device = On::device});
    Tensor want;
    int64_t at = 0;
    c.model->zero_grad();
    for (const int length : kLengths) {
      const Tensor sum = c.sum(all.narrow(1, at, length), weights.narrow(1, at, length), {});
      sum.backward();
      want = want.defined() ? want + sum.detach() : sum.detach();
      at += length;
    }
    const std::vector<Tensor> grads = gradients(*c.model);
    c.model->zero_grad();
    const Tensor got = c.sum(all, weights, AttentionMask::packed(starts(On::device)));
    got.backward();
    CHECK(relative_error(got, want) < 1e-12);
    const std::vector<Tensor> packed = gradients(*c.model);
    for (size_t i = 0; i < grads.size(); ++i) CHECK(relative_error(packed[i], grads[i]) < 1e-11);
  }
}

TEST_CASE("packed texts: a mask in the options, and losses that hold no logits") {
  const Tensor all = tokens(kCPU), targets = remainder(all + 1, kVocab), cu_seqlens = starts(kCPU);
  const AttentionMask mask = AttentionMask::packed(cu_seqlens);
  nn::CausalLMOptions options = small_options({.vocab = kVocab, .context = kLongest});
  nn::TransformerConfig config = config_of(kLongest);
  manual_seed(5);
  nn::CausalLM lm(options);
  nn::Decoder decoder(config);
  options.mask = mask;
  config.attention[0].mask = mask;
  nn::CausalLM own_lm = deep_copy(lm, [&] { return nn::CausalLM(options); });
  nn::Decoder own_decoder = deep_copy(decoder, [&] { return nn::Decoder(config); });
  CHECK(all_same(own_lm(all), lm(all, mask)));
  CHECK(all_same(own_decoder(all), decoder(all, mask)));
  CHECK(all_same(own_lm.loss(all, targets), lm.loss(all, targets, {}, mask)));
  CHECK(all_same(own_decoder.loss(all, targets), decoder.loss(all, targets, {}, mask)));
  double want_lm = 0, want_decoder = 0;
  int64_t at = 0;
  for (const int length : kLengths) {
    const Tensor x = all.narrow(1, at, length), y = targets.narrow(1, at, length);
    want_lm += lm.loss(x, y).item<double>() * length / kTokens;
    want_decoder += decoder.loss(x, y).item<double>() * length / kTokens;
    at += length;
  }
  CHECK(own_lm.loss(all, targets).item<double>() == doctest::Approx(want_lm).epsilon(1e-6));
  CHECK(own_decoder.loss(all, targets).item<double>() ==
        doctest::Approx(want_decoder).epsilon(1e-6));
  // New lengths in the same tensor.
  Tensor(cu_seqlens).copy_(int32s({0, 6, 6, 9, 16}));
  CHECK(largest_difference(own_lm(all).narrow(1, 6, 3), lm(all.narrow(1, 6, 3))) < 1e-6);
  Tensor(cu_seqlens).copy_(int32s({0, 8, 8, 9, 16}));
  expect_error<IndexError>(
      "in position_embedding: embedding: expected indices in [0, 7), got 7 at [7]",
      [&] { own_lm(all); });
}

TEST_CASE("positions_in_texts: counted by every packed part that holds, for all layers") {
  const auto packed = [](const std::vector<int>& ends) {
    return AttentionMask::packed(int32s(ends));
  };
  const auto of = [](const std::vector<AttentionMask>& masks) {
    const Tensor positions = positions_in_texts(masks, 6);
    return positions.defined() ? positions.to_vector<int64_t>() : std::vector<int64_t>();
  };
  using Positions = std::vector<int64_t>;
  const AttentionMask a = packed({0, 4, 6}), b = packed({0, 1, 1, 4, 6}),
                      c = AttentionMask::causal(), d = AttentionMask::window(2, 2);
  CHECK(of({a}) == Positions{0, 1, 2, 3, 0, 1});
  CHECK(of({c & a & d}) == Positions{0, 1, 2, 3, 0, 1});
  CHECK(of({(c & a) | (d & a)}) == Positions{0, 1, 2, 3, 0, 1});
  CHECK(of({a & b}) == Positions{0, 0, 1, 2, 0, 1});
  CHECK(of({b & a, a}) == Positions{0, 1, 2, 3, 0, 1});
  CHECK(of({a | b}) == Positions{0, 1, 2, 3, 0, 1});
  CHECK(of({b, c & b}) == Positions{0, 0, 1, 2, 0, 1});
  for (const auto& masks : {std::vector{c}, {a, c}, {c, a}, {c | a}, {a | d}, {a & c, d}}) {
    CHECK(of(masks).empty());
  }
  expect_error<ValueError>(
      "attention: expected cu_seqlens that ascend from 0 to the length, 6, got 5 at 1", [&] {
        of({packed({0, 5})});
      });
}

TEST_CASE_TEMPLATE("packed texts: positions by call are those of learnt and rotary ones", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const Device device = On::device;
  const NoGradGuard no_grad;
  manual_seed(6);
  nn::CausalLM lm = small_lm({.vocab = kVocab, .context = kTokens});
  nn::TransformerConfig config = config_of(0);
  config.attention = {{.rotary = nn::RotaryOptions{}}};
  nn::Decoder rotary(config), learnt(config_of(kTokens));
  config.packed = false;
  config.attention[0].rotary->layout = RotaryLayout::interleaved;
  nn::Decoder separate(config);
  for (nn::Module* const model : std::vector<nn::Module*>{&lm, &rotary, &learnt, &separate}) {
    for (const Tensor& p : model->parameters()) p.detach().mul_(8);
    model->to(device, DType::float64);
  }
  const Tensor all = tokens(device), in_order = arange(kTokens, {.device = device}),
               moved = in_order + 1000, text = all.narrow(1, 0, kLongest);
  CHECK(all_same(lm(all, AttentionMask(), in_order), lm(all)));
  CHECK(all_same(learnt(all, AttentionMask(), in_order), learnt(all)));
  for (nn::Decoder* const model : {&rotary, &separate}) {
    const Tensor want = (*model)(all);
    CHECK(relative_error((*model)(all, AttentionMask(), in_order), want) < 1e-14);
    CHECK(relative_error((*model)(all, AttentionMask(), moved), want) < 1e-10);
    CHECK(relative_error((*model)(all, AttentionMask(), in_order * 2), want) > 1e-3);
  }
  // The second row has three tokens of padding before its text.
  const Tensor rows = cat({text, cat({zeros({1, 3}, all.options()), text.narrow(1, 0, 4)}, 1)}, 0);
  const Tensor positions = tensor<int64_t>({0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 1, 2, 3},
                                           {2, kLongest}, {.device = device});
  const Tensor first = tensor<int>({0, 3}, {2, 1, 1}, {.device = device}),
               past = full({2, 1, 1}, int64_t{kLongest}, first.options());
  const AttentionMask mask = AttentionMask::row_ranges(first, past);
  const auto check = [&](auto& model) {
    const Tensor both = model(rows, mask, positions);
    CHECK(relative_error(both[0], model(text)[0]) < 1e-12);
    CHECK(relative_error(both[1].narrow(0, 3, 4), model(text.narrow(1, 0, 4))[0]) < 1e-12);
  };
  check(lm);
  check(learnt);
  check(rotary);
  check(separate);
}

TEST_CASE("packed texts: positions by call that do not fit are refused") {
  nn::CausalLM lm = small_lm({.vocab = kVocab, .context = kTokens, .layers = 1});
  nn::CausalLM alibi({.vocab = kVocab,
                      .dim = 8,
                      .heads = 2,
                      .layers = 1,
                      .learned_positions = false,
                      .alibi = true});
  nn::TransformerConfig unordered = config_of(0);
  unordered.no_positions = true;
  nn::Decoder decoder(config_of(kTokens)), none(unordered);
  const Tensor all = tokens(kCPU), in_order = arange(kTokens);
  const auto of = [&](auto& model, const Tensor& positions) {
    return [&model, &all, positions] { model(all, AttentionMask(), positions); };
  };
  const std::string shape = "expected positions [T] or [B, T] of tokens [1, 16], got [15]";
  expect_errors({
      {"ShapeError: CausalLM: " + shape, of(lm, arange(15))},
      {"ShapeError: Decoder: " + shape, of(decoder, arange(15))},
      {"DTypeError: CausalLM: expected positions of int64, got int32",
       of(lm, in_order.to(DType::int32))},
      {"DTypeError: Decoder: expected positions of int64, got int32",
       of(decoder, in_order.to(DType::int32))},
      {"ValueError: CausalLM: expected a model with learnt or rotary positions, for positions by "
       "call, got neither",
       of(alibi, in_order)},
      {"ValueError: Decoder: expected a model with learnt or rotary positions, for positions by "
       "call, got neither",
       of(none, in_order)},
      {"IndexError: in position_embedding: embedding: expected indices in [0, 16), got 16 at [15]",
       of(decoder, in_order + 1)},
      {"IndexError: in position_embedding: embedding: expected indices in [0, 16), got -1 at [0]",
       of(lm, in_order - 1)},
  });
}

TEST_CASE("packed texts: frequencies that depend on the length of a text") {
  const NoGradGuard no_grad;
  nn::TransformerConfig config = config_of(0);
  nn::RotaryScaling scaling{.kind = nn::RotaryScalingKind::longrope, .original_context = 8};
  scaling.short_factor = {1, 1};
  scaling.long_factor = {2, 4};
  config.attention = {{.rotary = nn::RotaryOptions{.scaling = scaling}}};
  manual_seed(7);
  nn::Decoder model(config);
  for (const Tensor& p : model.parameters()) p.detach().mul_(8);
  const Tensor all = tokens(kCPU), text = all.narrow(1, 6, kLongest);
  const AttentionMask mask = AttentionMask::packed(starts(kCPU));
  expect_error<ValueError>(
      "Decoder: expected positions for packed texts of more than 8 tokens, beyond which rotary "
      "frequencies depend on the length of a text, got none for 16",
      [&] { model(all, mask); });
  const Tensor positions = positions_in_texts({mask}, kTokens);
  CHECK(largest_difference(model(all, mask, positions).narrow(1, 6, kLongest), model(text)) < 1e-4);
  CHECK_NOTHROW(model(all.narrow(1, 0, 6), AttentionMask::packed(int32s({0, 5, 6}))));
  CHECK(largest_difference(model(all, AttentionMask(), arange(kTokens)), model(all)) < 1e-4);
}

TEST_CASE_TEMPLATE("packed texts: a captured step finds positions on the device", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Device device = On::device;
  const auto losses = [&](bool capture) {
    manual_seed(8);
    nn::CausalLM lm = small_lm({.vocab = kVocab, .context = kLongest, .dim = 16});
    nn::TransformerConfig config = config_of(0);
    config.attention = {{.rotary = nn::RotaryOptions{}}};
    nn::Decoder rotary(config);
    lm.to(device);
    rotary.to(device);
    std::vector<Tensor> parameters = lm.parameters();
    for (const Tensor& p : rotary.parameters()) parameters.push_back(p);
    optim::SGD optimizer(parameters, {.lr = 0.1});
    optim::CapturedStep step(
        [&](const std::vector<Tensor>& in) {
          const AttentionMask mask = AttentionMask::packed(in[1]);
          const Tensor positions = positions_in_texts({mask}, kTokens);
          optimizer.zero_grad();
          const Tensor loss =
              lm.loss(in[0], in[0], {}, mask) + rotary.loss(in[0], in[0], {}, mask, positions);
          loss.backward();
          optimizer.step();
          return loss;
        },
        {.device = device, .capture = capture});
    std::vector<double> all;
    for (const auto& lengths : std::vector<std::vector<int>>{
             {5, 1, 7, 3}, {4, 4, 4, 4}, {7, 7, 1, 1}, {2, 6, 2, 6}, {5, 1, 7, 3}}) {
      all.push_back(step({tokens(device), starts(device, lengths)}).item<double>());
    }
    if (!device.is_cpu() && capture) CHECK(step.reason().empty());
    return all;
  };
  CHECK(losses(true) == losses(false));
}
