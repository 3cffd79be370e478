// Models whose linear layers multiply in FP8: which layers do, training, checkpoints of activations
// and recorded steps. With SASH_LONG_TESTS, 1,000 steps against bfloat16.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
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

/// The bytes of the documentation.
std::vector<int64_t> documentation() {
  std::vector<std::filesystem::path> pages;
  for (const auto& entry : std::filesystem::directory_iterator(SASH_SOURCE_DIR "/docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  std::sort(pages.begin(), pages.end());
  std::vector<int64_t> bytes;
  for (const auto& page : pages) {
    std::ifstream file(page, std::ios::binary);
    for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
      bytes.push_back(static_cast<unsigned char>(*at));
    }
  }
  return bytes;
}

/// Mean losses of ten equal parts of a training: a model of Llama's kind, on a card.
std::vector<double> tenths_of_training(const std::vector<int64_t>& bytes, uint64_t seed,
                                       bool float8) {
  constexpr int64_t kSteps = 1000, kBatch = 32, kLength = 256;
  manual_seed(seed);
  nn::TransformerConfig config =
      small_config({.vocab = 256, .dim = 256, .layers = 4, .mlp_dim = 768, .init_std = 0.02});
  nn::Decoder model(config);
  model.to(kCUDA).bfloat16();
  model.float8(float8);
  optim::AdamW optimizer(model.parameters(),
                         {.lr = 1e-3, .master_weights = true, .max_grad_norm = 1.0});
  optim::CapturedStep step(
      [&](const std::vector<Tensor>& in) {
        optimizer.zero_grad();
        const Tensor loss = model.loss(in[0], in[1]);
        loss.backward();
        optimizer.step();
        return loss;
      },
      {.device = kCUDA});
  std::mt19937_64 random(seed);
  std::vector<double> tenths(10);
  for (int64_t i = 0; i < kSteps; ++i) {
    std::vector<int64_t> tokens;
    for (int64_t row = 0; row < kBatch; ++row) {
      const auto first = static_cast<int64_t>(random() % (bytes.size() - kLength - 1));
      tokens.insert(tokens.end(), bytes.begin() + first, bytes.begin() + first + kLength + 1);
    }
    const Tensor all = tensor(tokens, {kBatch, kLength + 1}).to(kCUDA);
    const Tensor loss =
        step({all.narrow(1, 0, kLength).contiguous(), all.narrow(1, 1, kLength).contiguous()});
    tenths[static_cast<size_t>(i * 10 / kSteps)] += loss.item<double>() * 10 / kSteps;
  }
  return tenths;
}

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

TEST_CASE("cuda float8 models: the losses of a thousand steps are near those of bfloat16") {
  if (missing(kCUDA) || !std::getenv("SASH_LONG_TESTS")) return;
  const std::vector<int64_t> bytes = documentation();
  std::vector<std::vector<double>> half, eight;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    half.push_back(tenths_of_training(bytes, seed, false));
    eight.push_back(tenths_of_training(bytes, seed, true));
  }
  for (size_t part = 0; part < 10; ++part) {
    double spread = 0, apart = 0;
    for (size_t i = 0; i < half.size(); ++i) {
      for (const auto& other : half)
        spread = std::max(spread, std::abs(half[i][part] - other[part]));
      apart = std::max(apart, std::abs(eight[i][part] - half[i][part]));
    }
    MESSAGE("tenth ", part + 1, ": bf16 ", half[0][part], ", spread ", spread, "; fp8 ",
            eight[0][part], ", at most ", apart, " from bf16 of the same seed");
    CHECK(apart <= 0.15 * half[0][part]);
  }
}
