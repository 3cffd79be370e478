#include "options.h"

#include <cmath>
#include <limits>

#include <sash/core/distributed/launch.h>
#include <sash/nn/attention/attention_kind.h>
#include <sash/tensor/distributed/group.h>
#include <CLI/CLI.hpp>

#include "../support/program.h"

namespace {

// Used instead of CLI11's checks, which print the limits of a double and accept NaN.
CLI::Validator whole_number(int64_t least, int64_t most) {
  const auto check = [=](const std::string& text) -> std::string {
    int64_t value = 0;
    if (read_number(text, value) && value >= least && value <= most) return "";
    return complaint("a whole number from " + std::to_string(least) + " to " + std::to_string(most),
                     text);
  };
  return {check, "COUNT"};
}

CLI::Validator number(const std::string& what, bool (*fits)(double)) {
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    return read_number(text, value) && std::isfinite(value) && fits(value) ? ""
                                                                           : complaint(what, text);
  };
  return {check, "NUMBER"};
}

const CLI::Validator kCount = whole_number(0, int64_t{1} << 40);
const CLI::Validator kSize = whole_number(1, int64_t{1} << 24);
const CLI::Validator kPositive = number("a number above 0", [](double x) { return x > 0; });
const CLI::Validator kProbability =
    number("a number from 0 to 1", [](double x) { return x >= 0 && x <= 1; });

std::string check_attention(const std::string& attention) {
  try {
    if (attention != "self") sash::nn::AttentionKind::parse(attention);
    return "";
  } catch (const sash::Error& error) {
    return error.what();
  }
}

void add_model_options(CLI::App& app, Options& options) {
  app.add_option("--attention", options.attention,
                 "Attention, always causal: causal, local:64, causal_window:64, "
                 "'causal_window:64 | sinks:4', bigbird:16,3,2,3, ...; causal_linear; top_k:32; "
                 "moba:64,top_k=4; nsa:32,top_k=8,window=128; "
                 "self: each position sees only itself")
      ->check(check_attention);
  app.add_option(
         "--precision", options.precision,
         "float32, or with products in tf32; bf16 or f16 (with a scaled loss): parameters "
         "and activations, with float32 masters in the optimiser; fp8: as bf16, with linear "
         "layers in FP8; float64")
      ->check(CLI::IsMember({"float32", "tf32", "bf16", "f16", "fp8", "float64"}))
      ->default_str("bf16 on CUDA, float32 on the CPU");
  app.add_option("--context", options.context, "Characters per sequence")->check(kSize);
  app.add_option("--layers", options.layers, "Transformer layers")->check(kSize);
  app.add_option("--heads", options.heads, "Attention heads")->check(kSize);
  app.add_option("--dim", options.dim, "Model width, a multiple of --heads")->check(kSize);
}

void add_training_options(CLI::App& app, Options& options) {
  app.add_option("--text", options.text,
                 "Text file to train on; its last tenth is held out for validation")
      ->check(CLI::ExistingFile)
      ->default_str("the sources of sash");
  app.add_option("--steps", options.steps, "Total training steps, including those before --resume")
      ->check(kCount);
  app.add_option("--batch", options.batch, "Sequences per step")->check(kSize);
  app.add_option("--dropout", options.dropout, "Dropout probability")->check(kProbability);
  app.add_flag("--capture,!--no-capture", options.capture,
               "Record the training step as a CUDA graph; on a CPU it runs eagerly");
  app.add_option("--optimizer", options.optimizer,
                 "adamw, or muon for the layers' matrices and adamw for all else")
      ->check(CLI::IsMember({"adamw", "muon"}));
  app.add_option("--lr", options.lr, "Peak learning rate")->check(kPositive);
  app.add_option("--seed", options.seed, "Seed of weights, dropout, data and sampling")
      ->check(check_seed);
  app.add_option("--save", options.save,
                 "Checkpoint file, written every --save-every steps, at the end, and when a signal "
                 "(Ctrl-C, SIGTERM, SIGHUP, ...) stops the training. Default: that of --resume")
      ->check(check_path);
  app.add_option("--save-every", options.save_every,
                 "Steps between checkpoints; 0: only at the end")
      ->check(kCount);
  app.add_option("--keep", options.keep,
                 "Newest checkpoints to keep: --save is a folder then, which has the best by "
                 "validation, too; 0: --save is one file")
      ->check(kCount);
  app.add_option("--log-every", options.log_every,
                 "Steps between lines of progress where there is no terminal")
      ->check(kSize);
  app.add_flag("--overfit-batch", options.overfit_batch,
               "Train on the first batch alone: a model that can learn brings its loss to 0");
  app.add_flag("--dry-run", options.dry_run,
               "Train a step, validate a batch, write a checkpoint and remove it, generate text");
  app.add_option("--resume", options.resume,
                 "Checkpoint to load, or the newest of a folder, with its settings. With --steps "
                 "or --text, training continues, if steps are left; with neither, the program only "
                 "generates text")
      ->check(CLI::ExistingPath);
  app.add_option("--profile", options.profile,
                 "File for a Chrome trace of the kernels of ten steps, which run eagerly; also "
                 "prints a table")
      ->check(check_path);
  app.add_option("--metrics", options.metrics,
                 "File for metrics, one JSON object per line and step, or .csv. A resumed run "
                 "first removes "
                 "the lines after its checkpoint's step, then appends")
      ->check(check_path);
  app.add_option("--tensorboard", options.tensorboard,
                 "Folder for event files that TensorBoard shows")
      ->check(check_path);
  app.add_option("--report", options.report,
                 "File for a page of HTML: curves, settings, the model, a sample, its attention")
      ->check(check_path);
}

void add_writing_options(CLI::App& app, Options& options) {
  app.add_option("--generate", options.generate, "Characters to generate at the end")
      ->check(kCount);
  app.add_option("--prompt", options.prompt, "Start of the generated text");
  app.add_option("--temperature", options.temperature, "Sampling temperature; lower is less random")
      ->check(kPositive);
}

}  // namespace

int run_with_options(int argc, char** argv, const std::function<int(const Options&)>& program) {
  Options options;
  CLI::App app{"Trains a character-level transformer on text, then generates text."};
  app.footer("Exit code: 0 on success, 1 after an error, 128 + n if stopped by signal n.");
  app.option_defaults()->always_capture_default();
  app.add_option("--device", options.device, "auto, cpu, cuda or cuda:<index>");
  app.add_option(
         "--gpus", options.gpus,
         "Cards to train on, each with --batch sequences per step; a launcher such as torchrun "
         "sets it itself")
      ->check(CLI::Range(1, 1024));
  add_model_options(app, options);
  add_training_options(app, options);
  add_writing_options(app, options);
  return run_program(app, argc, argv, [&] {
    if (options.gpus > 1 && sash::distributed::world().size() == 1) {
      return sash::distributed::launch_again(options.gpus);
    }
    for (const CLI::Option* option : app.get_options()) {
      if (option->count() > 0) options.given.insert(option->get_lnames().front());
    }
    return program(options);
  });
}
