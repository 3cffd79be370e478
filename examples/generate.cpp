/// Writes text with a pretrained model: `generate SmolLM2-135M-Instruct.gguf --prompt "..."`, or
/// with a folder that has config.json, safetensors and tokenizer.json. A window and sinks may take
/// the place of full attention, which bounds the memory of keys and values.

#include <sash/core/parallel.h>
#include <sash/nn/pretrained/pretrained.h>
#include <sash/nn/text/tokenizer.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>

#include "support/program.h"

using namespace sash;

namespace {

struct Settings {
  std::string path, prompt = "What is gravity?", device = "cpu", dtype;
  int64_t count = 200, window = 0, sinks = 4;
  int threads = 0;
  bool raw = false, ids = false, prompt_ids = false, no_stop = false;
  nn::GenerateOptions options{.temperature = 0.2, .top_p = 0.9, .repetition_penalty = 1.1};
};

void add_options(CLI::App& app, Settings& s) {
  const CLI::Range whole(int64_t{0}, std::numeric_limits<int64_t>::max());
  app.add_option("path", s.path, "A GGUF file, or a folder with config.json")->required();
  app.add_option("--prompt", s.prompt, "What the text begins with, or the user says");
  app.add_flag("--raw", s.raw, "Take the prompt as it is, without the turns of a chat");
  app.add_option("--count", s.count, "Most new tokens")->check(whole);
  app.add_option("--temperature", s.options.temperature, "0 takes the likeliest token");
  app.add_option("--top-k", s.options.top_k);
  app.add_option("--top-p", s.options.top_p);
  app.add_option("--min-p", s.options.min_p);
  app.add_option("--repetition-penalty", s.options.repetition_penalty);
  app.add_option("--seed", s.options.seed)->check(check_seed);
  app.add_option("--window", s.window, "Keys that a token sees beside the sinks; 0: all")
      ->check(whole);
  app.add_option("--sinks", s.sinks, "First tokens that all see, with --window")->check(whole);
  app.add_option("--device", s.device);
  app.add_option("--dtype", s.dtype, "By default the file's, float32 of quantised ones");
  app.add_option("--threads", s.threads, "0: as many as there are processors")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  app.add_flag("--ids", s.ids, "Print the numbers of the new tokens, one a line, and no text");
  app.add_flag("--prompt-ids", s.prompt_ids, "Print those of the prompt, and nothing else");
  app.add_flag("--no-stop", s.no_stop, "Go on after the token that ends a text");
}

nn::TransformerConfig config_of(const nn::Pretrained& file, const Settings& s) {
  nn::TransformerConfig config = file.config();
  if (s.window > 0) {
    for (nn::LayerAttention& layer : config.attention) {
      layer.mask = AttentionMask::causal_window(s.window) | AttentionMask::sinks(s.sinks);
    }
  }
  return config;
}

// The user's turn and the start of the answer, in the form that models with these tokens know.
std::string chat(const text::Tokenizer& tokenizer, const std::string& prompt) {
  if (!tokenizer.id("<|im_start|>")) return prompt;
  return "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
         "Face<|im_end|>\n<|im_start|>user\n" +
         prompt + "<|im_end|>\n<|im_start|>assistant\n";
}

// Prints the text of tokens as they come, each character once it is complete.
class Printer {
 public:
  explicit Printer(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(int64_t token) {
    tokens_.push_back(token);
    const std::string text = tokenizer_.decode(tokens_);
    if (text.ends_with("\xef\xbf\xbd")) return;
    std::cout << text.substr(std::min(printed_, text.size())) << std::flush;
    printed_ = text.size();
  }

 private:
  const text::Tokenizer& tokenizer_;
  std::vector<int64_t> tokens_;
  size_t printed_ = 0;
};

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void run(Settings& s) {
  if (s.threads > 0) set_num_threads(s.threads);
  const nn::Pretrained file = nn::Pretrained::open(s.path);
  const text::Tokenizer tokenizer = file.tokenizer();
  const std::vector<int64_t> prompt =
      tokenizer.encode(s.raw ? s.prompt : chat(tokenizer, s.prompt));
  if (s.prompt_ids) {
    for (const int64_t token : prompt) std::cout << token << "\n";
    return;
  }
  nn::Decoder model = file.decoder(config_of(file, s),
                                   {.dtype = s.dtype.empty() ? file.dtype() : parse_dtype(s.dtype),
                                    .device = Device::parse(s.device)});

  Printer printer(tokenizer);
  Clock::time_point first;
  if (!s.no_stop) s.options.stop_tokens = file.stop_tokens();
  s.options.on_token = [&](int64_t token, int64_t) {
    if (first == Clock::time_point()) first = Clock::now();
    if (s.ids) {
      std::cout << token << "\n";
    } else {
      printer.add(token);
    }
    return true;
  };
  const Clock::time_point start = Clock::now();
  const size_t written = model.generate(prompt, s.count, s.options).size();
  const double reading = seconds(start, first), writing = seconds(first, Clock::now());
  std::cerr << (s.ids ? "" : "\n");
  if (written == 0) return;
  std::fprintf(stderr, "prompt: %zu tokens, %.1f tokens/s; new: %zu tokens, %.1f tokens/s\n",
               prompt.size(), static_cast<double>(prompt.size()) / reading, written,
               static_cast<double>(written - 1) / writing);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Writes text with a pretrained model");
  add_options(app, settings);
  return run_program(app, argc, argv, [&] {
    run(settings);
    return 0;
  });
}
