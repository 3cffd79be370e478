#include <doctest/doctest.h>
#include <sash/core/backend/backend.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/lora.h>
#include <sash/nn/models/decoder.h>
#include <sash/nn/pretrained/pretrained.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/tensor/factories.h>

#include <set>

#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

nn::TransformerConfig tiny() {
  nn::TransformerConfig config = small_config(
      {.vocab = 11, .heads = 2, .masks = {AttentionMask::causal_window(4)}, .init_std = 0.3});
  config.packed = false;
  config.tie_weights = true;
  return config;
}

Tensor some_tokens() { return tensor({{3, 1, 4, 1, 5, 9, 2, 6}, {2, 7, 1, 8, 2, 8, 1, 8}}); }
Tensor some_targets() { return tensor({{1, 4, 1, 5, 9, 2, 6, 5}, {7, 1, 8, 2, 8, 1, 8, 2}}); }

double step(nn::Decoder& model, optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  const Device device = model.token_embedding.weight.device();
  const Tensor loss = model.loss(some_tokens().to(device), some_targets().to(device));
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

double largest_difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace

TEST_CASE("lora: nothing changes at first, and training changes the adapters alone") {
  manual_seed(1);
  nn::Decoder model(tiny());
  const Tensor before = model(some_tokens()).detach();
  StateDict frozen;
  for (const auto& [name, tensor] : model.state_dict()) frozen.emplace_back(name, tensor.clone());
  const auto names = nn::add_lora(model, "q_proj|v_proj", {.rank = 3});
  CHECK(names == std::vector<std::string>{"layers.0.self_attn.q_proj", "layers.0.self_attn.v_proj",
                                          "layers.1.self_attn.q_proj",
                                          "layers.1.self_attn.v_proj"});
  CHECK(largest_difference(model(some_tokens()), before) == 0);
  const std::vector<Tensor> parameters = nn::lora_parameters(model);
  CHECK(parameters.size() == 8);
  CHECK(parameters[0].shape() == Shape{3, 16});
  CHECK(parameters[1].shape() == Shape{16, 3});
  optim::AdamW optimizer(parameters, {.lr = 0.03});
  const double first = step(model, optimizer);
  double last = 0;
  for (int i = 0; i < 20; ++i) last = step(model, optimizer);
  CHECK(last < 0.8 * first);
  for (const auto& [name, tensor] : frozen) {
    CHECK(find(model.state_dict(), name)->to_vector<float>() == tensor.to_vector<float>());
  }
  for (const auto& [name, parameter] : model.named_parameters()) {
    const bool lora = name.find(".lora.") != std::string::npos;
    CHECK(parameter.requires_grad() == lora);
    CHECK(parameter.grad().defined() == lora);
  }
}

TEST_CASE_TEMPLATE("lora: a model without adapters computes the same from merged weights", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  manual_seed(2);
  nn::Decoder model(tiny());
  model.to(On::device);
  nn::add_lora(model, ".*_proj", {.rank = 2, .alpha = 5});
  optim::AdamW optimizer(nn::lora_parameters(model), {.lr = 0.05});
  for (int i = 0; i < 5; ++i) step(model, optimizer);
  nn::Decoder plain(tiny());
  plain.to(On::device);
  plain.load_state_dict(nn::merged_state_dict(model));
  const Tensor want = model(some_tokens().to(On::device));
  CHECK(largest_difference(plain(some_tokens().to(On::device)), want) <
        1e-5 * want.abs().max().item<double>());
  nn::Decoder other(tiny());
  other.to(On::device);
  other.load_state_dict(model.state_dict(), false);
  CHECK(largest_difference(other(some_tokens().to(On::device)), want) > 1e-2);
}

TEST_CASE("lora: merged weights of a model that is one layer, in each dtype") {
  manual_seed(6);
  for (const DType dtype : {DType::bfloat16, DType::float32, DType::float64}) {
    nn::Linear model(3, 2), plain(3, 2);
    model.to(dtype);
    plain.to(dtype);
    CHECK(nn::add_lora(model, ".*", {.rank = 1, .alpha = 1}) == std::vector<std::string>{""});
    const std::vector<Tensor> factors = nn::lora_parameters(model);
    factors[1].detach().fill_(3);
    plain.load_state_dict(nn::merged_state_dict(model));
    const auto exact = [](const Tensor& t) { return t.detach().to(DType::float64); };
    const Tensor want = exact(model.weight) + exact(factors[1]).matmul(exact(factors[0]));
    const double bound = dtype == DType::bfloat16 ? 1e-2 : dtype == DType::float32 ? 1e-6 : 1e-15;
    CHECK(largest_difference(exact(plain.weight), want) < bound);
    CHECK(largest_difference(exact(model.weight), want) > 0.1);
  }
}

TEST_CASE("lora: files are saved with merged weights under the family's names") {
  const TemporaryFolder folder;
  const auto file = nn::Pretrained::open(SASH_TEST_PARITY "/checkpoints/qwen3");
  nn::TransformerConfig config = file.config();
  config.packed = false;
  nn::Decoder model(config);
  file.load(model);
  nn::add_lora(model, "layers\\.1\\.mlp\\.(up|down)_proj", {.rank = 2});
  optim::AdamW optimizer(nn::lora_parameters(model), {.lr = 0.05});
  for (int i = 0; i < 5; ++i) step(model, optimizer);
  file.save(model, folder.file("x"));
  const auto saved = nn::Pretrained::open(folder.file("x"));
  nn::Decoder again(saved.config());
  saved.load(again);
  const Tensor want = model(some_tokens());
  CHECK(largest_difference(again(some_tokens()), want) < 1e-5 * want.abs().max().item<double>());
}

TEST_CASE("lora: training resumes bit for bit") {
  const TemporaryFolder folder;
  const auto make = [] {
    manual_seed(3);
    nn::Decoder model(tiny());
    nn::add_lora(model, "q_proj", {.rank = 2, .dropout = 0.2});
    return model;
  };
  nn::Decoder model = make();
  optim::AdamW optimizer(nn::lora_parameters(model), {.lr = 0.02});
  for (int i = 0; i < 3; ++i) step(model, optimizer);
  optim::save_checkpoint(folder.file("x"), model, optimizer);
  std::vector<double> want;
  for (int i = 0; i < 3; ++i) want.push_back(step(model, optimizer));
  nn::Decoder resumed = make();
  optim::AdamW other(nn::lora_parameters(resumed), {.lr = 0.02});
  optim::load_checkpoint(folder.file("x"), resumed, other);
  for (const double loss : want) CHECK(step(resumed, other) == loss);
}

TEST_CASE("lora: frozen layers save nothing for gradients that nobody needs") {
  const auto saved_bytes = [](bool lora) {
    manual_seed(4);
    nn::Decoder model(tiny());
    if (lora) {
      nn::add_lora(model, "layers\\.1\\.mlp\\.down_proj");
    } else {
      nn::add_lora(model, ".*_proj");
    }
    const auto before = memory_stats(kCPU).current;
    const Tensor loss = model.loss(some_tokens(), some_targets());
    return memory_stats(kCPU).current - before;
  };
  // The first layer lies below all that is trained: nothing of it is kept.
  CHECK(saved_bytes(true) * 3 < saved_bytes(false));
}

TEST_CASE("lora: each layer computed again in the backward pass gives the same gradients") {
  const auto gradients = [](bool again) {
    manual_seed(5);
    nn::TransformerConfig config = tiny();
    config.dropout = 0.1;
    nn::Decoder model(config);
    nn::add_lora(model, "q_proj|up_proj");
    for (Tensor& p : nn::lora_parameters(model)) p.detach().copy_(randn(p.shape()) * 0.1);
    model.recompute_layers(again);
    const auto before = memory_stats(kCPU).current;
    const Tensor loss = model.loss(some_tokens(), some_targets());
    const auto kept = memory_stats(kCPU).current - before;
    loss.backward();
    std::vector<std::vector<float>> all;
    for (const Tensor& p : nn::lora_parameters(model)) all.push_back(p.grad().to_vector<float>());
    return std::pair(all, kept);
  };
  const auto plain = gradients(false), again = gradients(true);
  CHECK(plain.first == again.first);
  CHECK(again.second * 2 < plain.second);
}

TEST_CASE("lora: wrong calls change nothing") {
  nn::Decoder model(tiny());
  const std::string op = "ValueError: add_lora: expected ";
  expect_errors({
      {op + "a pattern that matches a Linear, got 'no_such'",
       [&] { nn::add_lora(model, "no_such"); }},
      {op + "a positive rank, got 0", [&] { nn::add_lora(model, "q_proj", {.rank = 0}); }},
      {op + "dropout in [0, 1], got 2", [&] { nn::add_lora(model, "q_proj", {.dropout = 2}); }},
      {op + "layers without a tied weight, got a tied weight, 'head'",
       [&] { nn::add_lora(model, "q_proj|head"); }},
  });
  CHECK(nn::lora_parameters(model).empty());
  CHECK(model.parameters()[0].requires_grad());
  nn::add_lora(model, "q_proj");
  expect_error<ValueError>(
      "add_lora: expected layers without an adapter, got one that has it, "
      "'layers.0.self_attn.q_proj'",
      [&] { nn::add_lora(model, "q_proj|k_proj"); });
  nn::add_lora(model, "k_proj");
  CHECK(nn::lora_parameters(model).size() == 8);
  for (const Tensor& p : nn::lora_parameters(model)) CHECK(p.requires_grad());
}
