#include "options.h"

#include <charconv>
#include <cmath>
#include <limits>

#include <sash/ops/attention/mask/attention_mask.h>
#include <CLI/CLI.hpp>

namespace {

template <class T>
bool read(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string complaint(const std::string& expected, const std::string& got) {
  return "expected " + expected + ", got " + (got.empty() ? "nothing" : got);
}

// CLI11's own checks print the limits of a double, and let NaN pass.
CLI::Validator whole_number(int64_t least, int64_t most) {
  const auto check = [=](const std::string& text) -> std::string {
    int64_t value = 0;
    if (read(text, value) && value >= least && value <= most) return "";
    return complaint("a whole number from " + std::to_string(least) + " to " + std::to_string(most),
                     text);
  };
  return {check, "COUNT"};
}

CLI::Validator number(const std::string& what, bool (*fits)(double)) {
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    return read(text, value) && std::isfinite(value) && fits(value) ? "" : complaint(what, text);
  };
  return {check, "NUMBER"};
}

const CLI::Validator kCount = whole_number(0, int64_t{1} << 40);
const CLI::Validator kSize = whole_number(1, int64_t{1} << 24);
const CLI::Validator kPositive = number("a number above 0", [](double x) { return x > 0; });
const CLI::Validator kProbability =
    number("a number from 0 to 1", [](double x) { return x >= 0 && x <= 1; });

std::string check_seed(const std::string& text) {
  uint64_t value = 0;
  return read(text, value) ? "" : complaint("a whole number from 0 to 2^64 - 1", text);
}

std::string check_path(const std::string& text) {
  return text.empty() ? complaint("the path of a file", text) : "";
}

std::string check_mask(const std::string& attention) {
  try {
    if (attention != "self") sash::AttentionMask::parse(attention);
    return "";
  } catch (const sash::Error& error) {
    return error.what();
  }
}

void add_model_options(CLI::App& app, Options& options) {
  app.add_option("--attention", options.attention,
                 "What a position sees of those before it: causal (all), causal_window:64, "
                 "'causal_window:64 | sinks:4', bigbird:16,3,2,3, ...; self: only itself")
      ->check(check_mask);
  app.add_option("--dtype", options.dtype, "Type of parameters and activations")
      ->check(CLI::IsMember({"float32", "float64"}));
  app.add_option("--context", options.context, "Characters per sequence")->check(kSize);
  app.add_option("--layers", options.layers, "Transformer layers")->check(kSize);
  app.add_option("--heads", options.heads, "Attention heads")->check(kSize);
  app.add_option("--dim", options.dim, "Width; a multiple of the heads")->check(kSize);
}

void add_training_options(CLI::App& app, Options& options) {
  app.add_option("--text", options.text, "File to learn; its last tenth is held out")
      ->check(CLI::ExistingFile)
      ->default_str("the sources of sash");
  app.add_option("--steps", options.steps, "Training steps in all")->check(kCount);
  app.add_option("--batch", options.batch, "Sequences per step")->check(kSize);
  app.add_option("--dropout", options.dropout, "Dropout probability")->check(kProbability);
  app.add_option("--lr", options.lr, "Highest learning rate")->check(kPositive);
  app.add_option("--seed", options.seed, "Seed of weights, dropout, data and sampling")
      ->check(check_seed);
  app.add_option("--save", options.save,
                 "Checkpoint to write: at the end, now and then, and when a signal (Ctrl-C, "
                 "SIGTERM, SIGHUP, ...) stops the training; that of --resume by default")
      ->check(check_path);
  app.add_option("--save-every", options.save_every,
                 "Steps between checkpoints; 0: only at the end")
      ->check(kCount);
  app.add_option("--resume", options.resume,
                 "Checkpoint to go on from, with its settings. With --steps or --text it is "
                 "trained further, without either it only writes")
      ->check(CLI::ExistingFile);
  app.add_option("--metrics", options.metrics,
                 "File for one JSON object per line and step. A resumed run appends, after "
                 "dropping lines of steps past its checkpoint")
      ->check(check_path);
}

void add_writing_options(CLI::App& app, Options& options) {
  app.add_option("--generate", options.generate, "Characters to write at the end")->check(kCount);
  app.add_option("--prompt", options.prompt, "What the written text starts with");
  app.add_option("--temperature", options.temperature, "Of the sampling; lower is safer")
      ->check(kPositive);
}

}  // namespace

bool parse_options(int argc, char** argv, Options& options, int& exit_code) {
  CLI::App app{"Trains a character-level transformer on text, then writes some."};
  app.footer("Ends with 0 when done, 1 after an error, 128 + n when signal n stopped it.");
  app.option_defaults()->always_capture_default();
  app.add_option("--device", options.device, "auto, cpu, cuda or cuda:<index>");
  add_model_options(app, options);
  add_training_options(app, options);
  add_writing_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error);
    return false;
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0) options.given.insert(option->get_lnames().front());
  }
  return true;
}
