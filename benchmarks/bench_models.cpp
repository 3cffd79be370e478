// Times whole training steps of models made from nn::TransformerConfig, bfloat16 with float32
// masters. Prints one line of JSON per case.

#include <cstdio>

#include <sash/nn/models/decoder.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/profiler.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "bench.h"

namespace nn = sash::nn;
using sash::Tensor;

namespace {

struct Case {
  const char* name;
  nn::TransformerConfig config;
  int64_t batch, length;
};

nn::LayerAttention rotating(const sash::AttentionMask& mask, double theta) {
  nn::LayerAttention layer{mask, nn::RotaryOptions()};
  layer.rotary->theta = theta;
  return layer;
}

// 12 layers of Llama's kind.
nn::TransformerConfig llama_160m() {
  nn::TransformerConfig config;
  config.vocab = 32000;
  config.dim = 768;
  config.layers = 12;
  config.heads = 12;
  config.mlp_dim = 3072;
  config.attention = {rotating({}, 1e4)};
  return config;
}

// A stack of Gemma 3's layers: heads of 256, five windows of 1,024 keys to one layer that sees all.
nn::TransformerConfig gemma3_stack() {
  nn::TransformerConfig config;
  config.vocab = 1024;
  config.dim = 1152;
  config.layers = 6;
  config.heads = 4;
  config.kv_heads = 1;
  config.head_dim = 256;
  config.mlp_dim = 6912;
  config.norm = nn::NormKind::rms_norm_unit_offset;
  config.norm_placement = nn::NormPlacement::around;
  config.qk_norm = nn::QKNorm::per_head;
  config.mlp = nn::MlpKind::geglu_tanh;
  config.tie_weights = true;
  const nn::LayerAttention near = rotating(sash::AttentionMask::causal_window(1024), 1e4);
  config.attention = {near, near, near, near, near, rotating({}, 1e6)};
  return config;
}

// As llama_160m, small enough for a CPU.
nn::TransformerConfig llama_tiny() {
  nn::TransformerConfig config = llama_160m();
  config.vocab = 96;
  config.dim = 128;
  config.layers = 4;
  config.heads = 4;
  config.mlp_dim = 384;
  return config;
}

std::vector<Case> cases_on(sash::Device device) {
  if (!device.is_cuda()) return {{"llama_tiny", llama_tiny(), 8, 128}};
  return {{"llama_160m", llama_160m(), 8, 2048}, {"gemma3_stack", gemma3_stack(), 1, 8192}};
}

void run(const Case& setup, sash::Device device, bool captured, bool profile) {
  sash::manual_seed(0);
  nn::Decoder model(setup.config);
  model.to(device);
  if (device.is_cuda()) model.bfloat16();
  sash::optim::AdamW optimizer(model.parameters(),
                               {.lr = 3e-4, .master_weights = true, .max_grad_norm = 1});
  const sash::Shape shape{setup.batch, setup.length};
  const Tensor x = sash::randint(0, setup.config.vocab, shape, {.device = device});
  const Tensor y = sash::randint(0, setup.config.vocab, shape, {.device = device});
  sash::optim::CapturedStep train(
      [&](const std::vector<Tensor>& batch) {
        optimizer.zero_grad();
        const Tensor mean = model.loss(batch[0], batch[1]);
        mean.backward();
        optimizer.step();
        return mean;
      },
      {.device = device, .capture = captured});
  Tensor loss;
  const auto step = [&] { loss = train({x, y}); };
  step();
  const double first = loss.item<double>();
  sash::reset_peak_memory(device);
  step();
  if (captured && !train.reason().empty()) throw std::runtime_error(train.reason());
  const double ms = sash::bench::median_ms(device, 5, step);
  // All steps use the same batch, so the loss of a correct training step falls.
  if (!(loss.item<double>() < first)) throw std::runtime_error("the loss does not fall");
  if (profile) {
    sash::optim::Profiler profiler;
    for (int i = 0; i < 5; ++i) step();
    std::fprintf(stderr, "%s, five steps\n%s\n", setup.name, profiler.table().c_str());
  }
  const auto tokens = static_cast<double>(setup.batch * setup.length);
  const auto peak = static_cast<double>(sash::memory_stats(device).peak);
  sash::bench::print({{"kind", "models"},
                      {"case", setup.name},
                      {"impl", "sash"},
                      {"ms", sash::bench::rounded(ms, 3)},
                      {"tok_s", std::round(tokens / ms * 1e3)},
                      {"peak_mb", std::round(peak / (1 << 20))}});
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps of model families");
  std::vector<std::string> wanted;
  app.add_option("--case", wanted, "only these cases");
  bool profile = false;
  app.add_flag("--profile", profile, "eager steps, and a table of their kernels");
  return sash::bench::run_program(app, argc, argv, [&](sash::Device device) {
    for (const Case& setup : cases_on(device)) {
      if (!wanted.empty() && !sash::bench::contains(wanted, setup.name)) continue;
      run(setup, device, device.is_cuda() && !profile, profile);
    }
    return true;
  });
}
