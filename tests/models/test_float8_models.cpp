// Models whose linear layers multiply in FP8: which layers do, training, checkpoints of activations
// and recorded steps.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/decoder.h>
#include <sash/ops/kernels/float8.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kVocab = 32, kTokens = 48;

nn::TransformerConfig config_of() {
  nn::TransformerConfig config = small_config(
      {.vocab = kVocab, .dim = 64, .heads = 4, .kv_heads = 2, .mlp_dim = 96, .init_std = 0.1});
  return config;
}

struct Batch {
  explicit Batch(Device device) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < 2 * (kTokens + 1); ++i) tokens.push_back(i * i % 29 + i % 3);
    const Tensor all = tensor(tokens, {2, kTokens + 1}).to(device);
    x = all.narrow(1, 0, kTokens).contiguous();
    y = all.narrow(1, 1, kTokens).contiguous();
  }
  Tensor x, y;
};

uint64_t products(Device device) { return kernels::float8_matmul.calls(device.type); }

}  // namespace

TEST_CASE_TEMPLATE("float8 models: the layers that multiply in FP8", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  const Batch batch(On::device);
  nn::Decoder model(config_of());
  model.to(On::device).bfloat16();
  CHECK(!model.is_float8());
  const auto count = [&](auto&& call) {
    const uint64_t before = products(On::device);
    call();
    return products(On::device) - before;
  };
  const Tensor plain = model.loss(batch.x, batch.y).detach();
  CHECK(count([&] { model.loss(batch.x, batch.y); }) == 0);
  model.float8();
  CHECK(!model.head->is_float8());
  CHECK(model.is_float8());
  CHECK(to_string(model).find("Linear(64 -> 128, FP8)") != std::string::npos);
  // qkv, o, gate and up as one, down; and two gradients of each.
  Tensor loss;
  CHECK(count([&] { loss = model.loss(batch.x, batch.y); }) == 8);
  CHECK(count([&] { loss.backward(); }) == 16);
  CHECK(count([&] { model(batch.x); }) == 8);
  CHECK(std::abs(loss.item<double>() - plain.item<double>()) < 0.05 * plain.item<double>());
  const nn::Decoder copy = deep_copy(model, [] { return nn::Decoder(config_of()); });
  CHECK(copy.head->is_float8() == false);
  CHECK(copy.is_float8());
  model.float8(true, ".*");
  CHECK(count([&] { model.loss(batch.x, batch.y); }) == 0);
  model.float8(true, "");
  CHECK(count([&] { model(batch.x); }) == 9);
  CHECK(thrown_by([&] { model.float8(true, "("); }).starts_with("ValueError: "));
  model.float8(false);
  CHECK(all_same(model.loss(batch.x, batch.y).detach(), plain));
}

TEST_CASE_TEMPLATE("float8 models: PyTorch's layers too", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(2);
  const Batch batch(On::device);
  nn::CausalLM model = small_lm({.vocab = kVocab, .context = kTokens, .dim = 32});
  model.to(On::device).bfloat16();
  model.float8();
  const uint64_t before = products(On::device);
  const Tensor loss = cross_entropy(model(batch.x).to(DType::float32), batch.y);
  loss.backward();
  CHECK(products(On::device) - before == 2 * 4 * 3);
}

TEST_CASE_TEMPLATE("float8 models: activations that are computed again have the same bits", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const Batch batch(On::device);
  std::vector<std::vector<double>> gradients;
  for (const bool recompute : {false, true}) {
    manual_seed(3);
    nn::Decoder model(config_of());
    model.to(On::device).bfloat16();
    model.float8();
    const auto loss = [&](const Tensor& x) { return model.loss(x, batch.y); };
    if (recompute) {
      checkpoint(
          [&](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {loss(in[0])}; },
          {batch.x})[0]
          .backward();
    } else {
      loss(batch.x).backward();
    }
    std::vector<double>& all = gradients.emplace_back();
    for (const Tensor& p : model.parameters()) {
      const std::vector<double> part = p.grad().to_vector<double>();
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  CHECK(gradients[0] == gradients[1]);
}

TEST_CASE_TEMPLATE("float8 models: training, recorded or not, is as good as in bfloat16", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const Batch batch(On::device);
  const auto losses = [&](bool float8, bool captured) {
    manual_seed(4);
    nn::Decoder model(config_of());
    model.to(On::device).bfloat16();
    model.float8(float8);
    optim::AdamW optimizer(model.parameters(), {.lr = 3e-3, .master_weights = true});
    optim::CapturedStep step(
        [&](const std::vector<Tensor>& in) {
          optimizer.zero_grad();
          const Tensor loss = model.loss(in[0], in[1]);
          loss.backward();
          optimizer.step();
          return loss;
        },
        {.device = On::device, .capture = captured});
    std::vector<double> all;
    for (int i = 0; i < 30; ++i) all.push_back(step({batch.x, batch.y}).template item<double>());
    if (captured && !On::device.is_cpu()) CHECK(step.reason() == "");
    return all;
  };
  const std::vector<double> half = losses(false, false), eager = losses(true, false);
  CHECK(eager.back() < eager.front() / 2);
  CHECK(std::abs(eager.back() - half.back()) < 0.15 * half.front());
  CHECK(losses(true, true) == eager);
}
