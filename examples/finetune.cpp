/// Fine-tunes a pretrained decoder by LoRA on a text, optionally under a window with sinks, which
/// bounds the memory of keys and values ever after: `finetune MODEL --text book.txt --window 256`.
/// Prints the loss on held-out text before and after, tokens per second and memory.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include <sash/sash.h>
#include <sash/tensor/io/replacement_file.h>

#include "support/flags.h"

using namespace sash;

namespace {

struct Settings {
  std::string path, text, save, pattern = "q_proj|k_proj|v_proj|o_proj";
  int64_t steps = 100, batch = 2, length = 512, window = 0, sinks = 4;
  double lr = 1e-3;
  uint64_t seed = 0;
  bool recompute = false;
  nn::LoraOptions lora{};
};

// Passages to train on, and the last 8.
std::pair<nn::data::Loader, nn::data::Loader> loaders(const nn::Pretrained& file,
                                                      const Settings& s) {
  std::ifstream in(s.text, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw IoError("finetune", "cannot read '" + s.text + "'");
  const std::vector<int64_t> tokens = file.tokenizer().encode(text, false);
  const int64_t held_out = 8 * s.length + 1;
  if (std::ssize(tokens) < 2 * held_out) {
    throw ValueError("finetune", "a text of at least 16 passages",
                     std::to_string(tokens.size()) + " tokens");
  }
  const auto passages = [&](auto begin, auto end, nn::data::LoaderOptions options) {
    return nn::data::Loader(nn::data::TokenDataset(nn::data::Tokens({begin, end}), s.length),
                            options);
  };
  const auto end = tokens.end() - held_out;
  return {passages(tokens.begin(), end, {.batch = s.batch, .shuffle = true, .seed = s.seed}),
          passages(end, tokens.end(), {})};
}

// Before the training: its result must not be lost.
void check_save(const nn::Pretrained& file, const Settings& s) {
  if (s.save.empty()) return;
  if (!file.gguf()) std::filesystem::create_directories(s.save);
  ReplacementFile("finetune", file.gguf() ? s.save : s.save + "/model.safetensors");
}

void run(const Settings& s) {
  manual_seed(s.seed);
  const nn::Pretrained file = nn::Pretrained::open(s.path);
  check_save(file, s);
  nn::TransformerConfig config = file.config();
  config.packed = false;  // so that each projection has its name
  if (s.window > 0) {
    for (nn::LayerAttention& layer : config.attention) {
      layer.mask = AttentionMask::causal_window(s.window) | AttentionMask::sinks(s.sinks);
    }
  }
  nn::Decoder model = file.decoder(config, {.dtype = DType::float32});
  std::printf("%zu layers adapted\n", nn::add_lora(model, s.pattern, s.lora).size());
  model.recompute_layers(s.recompute);
  auto [loader, held_out] = loaders(file, s);
  optim::AdamW optimizer(nn::lora_parameters(model), {.lr = s.lr, .weight_decay = 0});
  optim::Trainer trainer(model, optimizer, loader,
                         [&](const nn::data::Batch& b) { return model.loss(b[0], b[1]); },
                         {.steps = s.steps, .max_grad_norm = 1, .validate = &held_out});
  trainer.add(std::make_shared<optim::ProgressLine>());
  const double before = trainer.validate().at("loss");
  trainer.run();
  std::printf("held-out loss: %.4f before, %.4f after\n", before, trainer.validate().at("loss"));
  if (s.save.empty()) return;
  if (file.gguf()) {
    save_safetensors(s.save, nn::merged_state_dict(model));
  } else {
    file.save(model, s.save);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  Flags flags("Fine-tunes a pretrained decoder by LoRA", "cpu");
  flags.add("path", s.path, "A GGUF file, or a folder with config.json");
  flags.add("--text", s.text, "A file of UTF-8 text; its last 8 passages are held out");
  flags.add("--steps", s.steps);
  flags.add_size("--batch", s.batch, "Passages a step");
  flags.add_size("--length", s.length, "Tokens of a passage");
  flags.add("--window", s.window, "Keys that a token sees beside the sinks; 0: all");
  flags.add("--sinks", s.sinks, "First tokens that all see, with --window");
  flags.add("--pattern", s.pattern, "Names of the layers that get an adapter");
  flags.add_size("--rank", s.lora.rank);
  flags.add("--alpha", s.lora.alpha);
  flags.add("--lr", s.lr);
  flags.add("--seed", s.seed);
  flags.add("--recompute", s.recompute, "Compute layers again in the backward pass");
  flags.add("--save", s.save, "Merged weights: a folder; of a GGUF model a safetensors file");
  return flags.run(argc, argv, [&] { run(s); });
}
