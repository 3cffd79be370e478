/// Fine-tunes a pretrained decoder by LoRA on a text, optionally under a window with sinks, which
/// bounds the memory of keys and values ever after: `finetune MODEL --text book.txt --window 256`.
/// Prints the loss on held-out text before and after, tokens per second and memory.

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include <sash/sash.h>
#include <CLI/CLI.hpp>

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
  app.add_option("--text", s.text, "A file of UTF-8 text; its last 8 passages are held out")
      ->required();
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

// Passages to train on, and the last 8.
std::pair<data::Loader, data::Loader> loaders(const nn::Pretrained& file, const Settings& s) {
  std::ifstream in(s.text, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw IoError("finetune", "cannot read '" + s.text + "'");
  const std::vector<int64_t> tokens = file.tokenizer().encode(text, false);
  const int64_t held_out = 8 * s.length + 1;
  if (std::ssize(tokens) < 2 * held_out) {
    throw ValueError("finetune", "a text of at least 16 passages",
                     std::to_string(tokens.size()) + " tokens");
  }
  const auto passages = [&](auto begin, auto end, data::LoaderOptions options) {
    return data::Loader(data::TokenDataset(data::Tokens({begin, end}), s.length), options);
  };
  const auto end = tokens.end() - held_out;
  return {passages(tokens.begin(), end, {.batch = s.batch, .shuffle = true, .seed = s.seed}),
          passages(end, tokens.end(), {})};
}

double held_out_loss(nn::Decoder& model, data::Loader& held_out) {
  const NoGradGuard no_grad;
  const nn::EvalGuard eval(model);
  double sum = 0;
  for (const data::Batch& batch : held_out) {
    sum += model.loss(batch[0], batch[1]).item<double>();
  }
  return sum / static_cast<double>(held_out.size());
}

void train(nn::Decoder& model, data::Loader& loader, const Settings& s) {
  optim::AdamW optimizer(nn::lora_parameters(model),
                         {.lr = s.lr, .weight_decay = 0, .max_grad_norm = 1});
  reset_peak_memory(default_device());
  const auto start = std::chrono::steady_clock::now();
  for (int step = 1; step <= s.steps; ++step) {
    const data::Batch batch = loader.next_or_restart();
    const Tensor loss = model.loss(batch[0], batch[1]);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 10 != 0 && step != s.steps) continue;
    const double value = loss.item<double>();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    std::printf("step %4d  loss %.4f  %.0f tokens/s  %.2f GB at most\n", step, value,
                static_cast<double>(step * s.batch * s.length) / spent.count(),
                static_cast<double>(memory_stats(default_device()).peak) / 1e9);
  }
}

void run(const Settings& s) {
  manual_seed(s.seed);
  set_default_device(Device::parse(s.device));
  const nn::Pretrained file = nn::Pretrained::open(s.path);
  nn::DecoderConfig config = file.config();
  config.packed = false;  // so that each projection has its name
  if (s.window > 0) {
    for (nn::LayerAttention& layer : config.attention) {
      layer.mask = AttentionMask::causal_window(s.window) | AttentionMask::sinks(s.sinks);
    }
  }
  nn::Decoder model = file.decoder(config);
  const size_t layers = nn::add_lora(model, s.pattern, s.lora).size();
  model.recompute_layers(s.recompute);
  auto [loader, held_out] = loaders(file, s);
  std::printf("%zu layers adapted\n", layers);
  const double before = held_out_loss(model, held_out);
  train(model, loader, s);
  std::printf("held-out loss: %.4f before, %.4f after\n", before, held_out_loss(model, held_out));
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
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
