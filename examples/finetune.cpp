/// Fine-tunes a pretrained decoder by LoRA on a text, optionally under a window with sinks, which
/// bounds the memory of keys and values ever after: `finetune MODEL --text book.txt --window 256`.
/// Prints the loss on held-out text before and after, tokens per second and memory.

#include <sash/core/backend/backend.h>
#include <sash/nn/layers/lora.h>
#include <sash/nn/pretrained/pretrained.h>
#include <sash/nn/text/tokenizer.h>
#include <sash/ops/shape/concat.h>
#include <sash/optim/adam.h>
#include <sash/optim/clip.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

using namespace sash;

namespace {

struct Settings {
  std::string path, text, save, device = "cpu", pattern = "q_proj|k_proj|v_proj|o_proj";
  int64_t steps = 100, batch = 2, length = 512, window = 0, sinks = 4;
  double lr = 1e-3;
  uint64_t seed = 0;
  bool recompute = false;
  nn::LoraOptions lora{};
};

void add_options(CLI::App& app, Settings& s) {
  app.add_option("path", s.path, "A GGUF file, or a folder with config.json")->required();
  app.add_option("--text", s.text, "A file of UTF-8 text; its last tenth is held out")->required();
  app.add_option("--steps", s.steps);
  app.add_option("--batch", s.batch, "Passages a step");
  app.add_option("--length", s.length, "Tokens of a passage");
  app.add_option("--window", s.window, "Keys that a token sees beside the sinks; 0: all");
  app.add_option("--sinks", s.sinks, "First tokens that all see, with --window");
  app.add_option("--pattern", s.pattern, "Names of the layers that get an adapter");
  app.add_option("--rank", s.lora.rank);
  app.add_option("--alpha", s.lora.alpha);
  app.add_option("--lr", s.lr);
  app.add_option("--seed", s.seed);
  app.add_option("--device", s.device);
  app.add_flag("--recompute", s.recompute, "Compute layers again in the backward pass");
  app.add_option(
      "--save", s.save,
      "Merged weights: a folder, or of a GGUF model a safetensors file with sash's names");
}

std::vector<int64_t> tokens_of(const nn::Pretrained& file, const Settings& s) {
  std::ifstream in(s.text, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw IoError("finetune", "cannot read '" + s.text + "'");
  const text::Tokenizer tokenizer = file.gguf() ? text::Tokenizer::from_gguf(*file.gguf())
                                                : text::Tokenizer::load(s.path + "/tokenizer.json");
  std::vector<int64_t> tokens = tokenizer.encode(text, false);
  if (static_cast<int64_t>(tokens.size()) < 20 * (s.length + 1)) {
    throw ValueError("finetune", "a text of at least 20 passages",
                     std::to_string(tokens.size()) + " tokens");
  }
  return tokens;
}

/// Passages that begin at `starts`, and what follows each token.
struct Batch {
  Tensor tokens, targets;
};

Batch batch_of(const Tensor& text, const std::vector<int64_t>& starts, int64_t length) {
  std::vector<Tensor> tokens, targets;
  for (const int64_t start : starts) {
    tokens.push_back(text.narrow(0, start, length));
    targets.push_back(text.narrow(0, start + 1, length));
  }
  return {stack(tokens, 0), stack(targets, 0)};
}

double held_out_loss(nn::Decoder& model, const Tensor& text, const Settings& s) {
  const NoGradGuard no_grad;
  model.eval();
  const int64_t first = text.size(0) * 9 / 10;
  const int64_t count = std::min<int64_t>(8, (text.size(0) - first - 1) / s.length);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Batch batch = batch_of(text, {first + i * s.length}, s.length);
    sum += model.loss(batch.tokens, batch.targets).item<double>();
  }
  model.train();
  return sum / static_cast<double>(count);
}

void train(nn::Decoder& model, const Tensor& text, const Settings& s) {
  optim::AdamW optimizer(nn::lora_parameters(model), {.lr = s.lr, .weight_decay = 0});
  const int64_t last = text.size(0) * 9 / 10 - s.length - 1;
  reset_peak_memory(text.device());
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 1; step <= s.steps; ++step) {
    const auto starts = randint(0, last, {s.batch}).to_vector<int64_t>();
    const Batch batch = batch_of(text, starts, s.length);
    optimizer.zero_grad();
    const Tensor loss = model.loss(batch.tokens, batch.targets);
    loss.backward();
    optim::clip_grad_norm_(nn::lora_parameters(model), 1);
    optimizer.step();
    if (step % 10 != 0 && step != s.steps) continue;
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("step %4ld  loss %.4f  %.0f tokens/s  %.2f GB at most\n", static_cast<long>(step),
                loss.item<double>(), static_cast<double>(step * s.batch * s.length) / seconds,
                static_cast<double>(memory_stats(text.device()).peak) / 1e9);
    std::fflush(stdout);
  }
}

void run(const Settings& s) {
  manual_seed(s.seed);
  const nn::Pretrained file = nn::Pretrained::open(s.path);
  nn::DecoderConfig config = file.config();
  config.packed = false;  // so that each projection has its name
  for (nn::LayerAttention& layer : config.attention) {
    if (s.window > 0) {
      layer.mask = AttentionMask::causal_window(s.window) | AttentionMask::sinks(s.sinks);
    }
  }
  const Device device = Device::parse(s.device);
  const std::vector<int64_t> tokens = tokens_of(file, s);
  const Tensor text = tensor(tokens, {static_cast<int64_t>(tokens.size())}).to(device);
  nn::Decoder model = file.decoder(config);
  model.to(device);
  const size_t layers = nn::add_lora(model, s.pattern, s.lora).size();
  model.recompute_layers(s.recompute);
  int64_t trained = 0;
  for (const Tensor& p : nn::lora_parameters(model)) trained += p.numel();
  std::printf("%zu layers adapted, %ld of %ld parameters trained, %zu tokens of text\n", layers,
              static_cast<long>(trained), static_cast<long>(model.num_parameters()), tokens.size());
  const double before = held_out_loss(model, text, s);
  train(model, text, s);
  std::printf("held-out loss: %.4f before, %.4f after\n", before, held_out_loss(model, text, s));
  if (s.save.empty()) return;
  if (file.gguf()) {
    save_safetensors(s.save, nn::merged_state_dict(model));
  } else {
    file.save(model, s.save);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Fine-tunes a pretrained decoder by LoRA");
  add_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  try {
    run(settings);
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
