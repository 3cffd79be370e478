#include "options.h"

#include <sash/ops/attention_mask.h>
#include <CLI/CLI.hpp>

namespace {

// CLI11's own checks for signs answer with the range of a double.
const CLI::Range kCount(int64_t{0}, int64_t{1} << 40);
const CLI::Range kSize(int64_t{1}, int64_t{1} << 40);

// What is wrong with a mask, or nothing.
std::string complaint(const std::string& attention) {
  try {
    if (attention != "self") sash::AttentionMask::parse(attention);
    return "";
  } catch (const sash::Error& error) {
    return error.what();
  }
}

}  // namespace

bool parse_options(int argc, char** argv, Options& options, int& exit_code) {
  CLI::App app{"Trains a character-level transformer on text, then writes some."};
  app.option_defaults()->always_capture_default();
  app.add_option("--device", options.device, "auto, cpu, cuda or cuda:<index>");
  app.add_option("--text", options.text, "File to learn; its last tenth is held out")
      ->default_str("the sources of sash");
  app.add_option("--attention", options.attention,
                 "What a position sees of those before it: causal (all), causal_window:64, "
                 "'causal_window:64 | sinks:4', bigbird:16,3,2,3, ...; self: only itself")
      ->check(complaint);
  app.add_option("--dtype", options.dtype, "Type of parameters and activations")
      ->check(CLI::IsMember({"float32", "float64"}));
  app.add_option("--steps", options.steps, "Training steps")->check(kCount);
  app.add_option("--batch", options.batch, "Sequences per step")->check(kSize);
  app.add_option("--context", options.context, "Characters per sequence")->check(kSize);
  app.add_option("--layers", options.layers, "Transformer layers")->check(kSize);
  app.add_option("--heads", options.heads, "Attention heads")->check(kSize);
  app.add_option("--dim", options.dim, "Width; a multiple of the heads")->check(kSize);
  app.add_option("--dropout", options.dropout, "Dropout probability")->check(CLI::Range(0.0, 1.0));
  app.add_option("--lr", options.lr, "Highest learning rate")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Seed of weights, dropout and data");
  app.add_option("--save", options.save, "Checkpoint to write at the end and on Ctrl-C");
  app.add_option("--resume", options.resume, "Checkpoint to go on from")->check(CLI::ExistingFile);
  app.add_option("--generate", options.generate, "Characters to write at the end")->check(kCount);
  app.add_option("--prompt", options.prompt, "What the written text starts with");
  app.add_option("--temperature", options.temperature, "Of the sampling; lower is safer")
      ->check(CLI::PositiveNumber);
  app.add_option("--metrics", options.metrics, "File for one JSON object per line and step");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error);
    return false;
  }
  return true;
}
