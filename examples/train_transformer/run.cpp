#include "run.h"

#include <cstdio>
#include <filesystem>
#include <optional>

#include <sash/optim/checkpoint.h>
#include <sash/sash.h>
#include <sash/tensor/io/replacement_file.h>

#include "settings.h"
#include "trainer.h"

namespace {

namespace fs = std::filesystem;
using sash::optim::CheckpointInfo;

constexpr const char* kOp = "train_transformer";

// What to do, decided from the options and the checkpoint.
struct Plan {
  Options options;
  CheckpointInfo start;  // of --resume; step 0 without it
  bool trains = false;
  bool needs_text = false;
  bool writes = false;
};

std::string entry(const CheckpointInfo& info, const std::string& key, const std::string& path) {
  const auto found = info.extra.find(key);
  if (found != info.extra.end()) return found->second;
  throw sash::FormatError(kOp, "a checkpoint of this program in " + path, "one without " + key);
}

void check_distinct(const char* flag, const std::string& path, const char* other_flag,
                    const std::string& other) {
  if (path.empty() || other.empty()) return;
  if (fs::weakly_canonical(path) != fs::weakly_canonical(other)) return;
  throw sash::ValueError(kOp, std::string(flag) + " and " + other_flag + " to be different files",
                         path + " for both");
}

void check_files(const Plan& plan) {
  const Options& options = plan.options;
  for (const auto& [flag, path] : {std::pair{"--text", options.text},
                                   {"--resume", options.resume},
                                   {"--save", options.save}}) {
    check_distinct("--metrics", options.metrics, flag, path);
    check_distinct("--profile", options.profile, flag, path);
  }
  check_distinct("--profile", options.profile, "--metrics", options.metrics);
  if (!options.profile.empty()) sash::ReplacementFile(kOp, options.profile);
  check_distinct("--save", options.save, "--text", options.text);
  if (options.save.empty() || !plan.trains) return;
  if (fs::is_regular_file(options.save) && options.save != options.resume) {
    const CheckpointInfo old = sash::optim::checkpoint_info(options.save);
    entry(old, "vocabulary", options.save);
    std::printf("%s (step %lld) will be overwritten\n", options.save.c_str(),
                static_cast<long long>(old.step));
  }
  sash::ReplacementFile(kOp, options.save);  // throws if it cannot be created
}

Plan make_plan(Options options) {
  Plan plan;
  if (!options.resume.empty()) {
    plan.start = sash::optim::checkpoint_info(options.resume);
    take_settings(plan.start.extra, options);
    if (options.save.empty()) options.save = options.resume;
  }
  const bool resumes = !options.resume.empty();
  const bool wanted = !resumes || options.has("steps") || options.has("text");
  for (const char* flag : {"save", "metrics", "profile"}) {
    if (wanted || !options.has(flag)) continue;
    throw sash::ValueError(kOp, std::string("--steps or --text with --resume and --") + flag,
                           "neither, which trains nothing");
  }
  plan.trains = wanted && (!resumes || plan.start.step < options.steps);
  plan.needs_text = plan.trains || options.has("text");
  // With --attention self, the mask has a fixed length, so the model cannot generate.
  plan.writes = options.generate > 0 && options.attention != "self";
  if (!plan.writes && options.generate > 0 && options.has("generate")) {
    throw sash::ValueError(kOp, "--generate 0 with --attention self", "more");
  }
  if (!options.text.empty()) options.text = fs::absolute(options.text).string();
  if (options.precision.empty()) {
    options.precision = sash::Device::parse(options.device).is_cuda() ? "bf16" : "float32";
  }
  plan.options = std::move(options);
  check_files(plan);
  return plan;
}

std::optional<Corpus> load_corpus(const Plan& plan, const std::optional<Vocabulary>& vocabulary) {
  if (!plan.needs_text) return std::nullopt;
  Corpus corpus = plan.options.text.empty()
                      ? Corpus::from_files(CORPUS_TRAIN, CORPUS_VALID, vocabulary)
                      : Corpus::from_file(plan.options.text, vocabulary);
  corpus.check_context(plan.options.context);
  const auto known = plan.start.extra.find("fingerprint");
  if (known != plan.start.extra.end() && known->second != corpus.fingerprint()) {
    std::printf("note: the text differs from the one %s was trained on\n",
                plan.options.resume.c_str());
  }
  return corpus;
}

// If the vocabulary lacks the default prompt, the prompt is the first character it has.
void check_prompt(Plan& plan, const Vocabulary& vocabulary) {
  Options& options = plan.options;
  if (!plan.writes) return;
  if (!options.has("prompt") && vocabulary.unknown_in(options.prompt) >= 0) {
    options.prompt = vocabulary.bytes().substr(0, 1);
  }
  if (options.prompt.empty())
    throw sash::ValueError(kOp, "a --prompt of a character or more", "none");
  vocabulary.encode("a --prompt", options.prompt);
}

void print_start(const Plan& plan, const Trainer& trainer, sash::Device device,
                 const std::optional<Corpus>& corpus) {
  const Options& options = plan.options;
  std::printf("%s, %lld parameters, on %s (%s)\n", options.precision.c_str(),
              static_cast<long long>(trainer.model().num_parameters()), to_string(device).c_str(),
              sash::backend(device.type).description(device).c_str());
  if (corpus) {
    std::printf("%zu training characters, %zu validation characters, %lld distinct\n",
                corpus->train().size(), corpus->valid().size(),
                static_cast<long long>(corpus->vocabulary().size()));
  }
  if (!options.resume.empty()) {
    std::printf("%s is at step %lld of %lld\n", options.resume.c_str(),
                static_cast<long long>(trainer.step()), static_cast<long long>(options.steps));
    if (!plan.trains) std::printf("no training: that needs --text, or more --steps\n");
  } else if (options.save.empty()) {
    std::printf("no --save: a checkpoint is written only if a signal stops the training\n");
  }
  std::fflush(stdout);
}

// Checkpoint of a run without --save that is stopped by a signal: an unused file name.
std::string spare_path() {
  std::string path = "train_transformer.safetensors";
  for (int i = 1; fs::exists(path); ++i) {
    path = "train_transformer." + std::to_string(i) + ".safetensors";
  }
  return path;
}

// Returns the exit code if a signal stopped the training.
int train(const Plan& plan, Trainer& trainer, const Corpus& corpus,
          std::optional<double>& validation_loss) {
  const Options& options = plan.options;
  Console console(options.steps);
  Metrics metrics(options.metrics, trainer.step());
  const StopSignals signals;
  try {
    validation_loss = trainer.run(corpus, console, metrics, signals);
  } catch (sash::Error& error) {
    console.finish();
    if (trainer.has_checkpoint()) error.append(options.save + " is the last good checkpoint");
    throw;
  }
  std::string path = options.save;
  if (path.empty() && signals.stop()) path = spare_path();
  if (!path.empty()) {
    if (!trainer.is_saved()) trainer.save(path, corpus);
    std::printf("saved step %lld to %s\n", static_cast<long long>(trainer.step()), path.c_str());
    std::fflush(stdout);
  }
  if (signals.stop()) {
    std::fprintf(stderr, "stopped by %s\n", signal_name(signals.received()).c_str());
    return 128 + signals.received();
  }
  return metrics.failed() ? 1 : 0;
}

}  // namespace

int run(Options chosen) {
  Plan plan = make_plan(std::move(chosen));
  const Options& options = plan.options;
  std::optional<Vocabulary> vocabulary;
  if (!options.resume.empty()) {
    vocabulary = Vocabulary::from_hex(entry(plan.start, "vocabulary", options.resume));
  }
  const std::optional<Corpus> corpus = load_corpus(plan, vocabulary);
  if (!vocabulary) vocabulary = corpus->vocabulary();
  check_prompt(plan, *vocabulary);

  const sash::Device device = sash::Device::parse(options.device);
  sash::set_default_device(device);
  sash::set_default_dtype(options.precision == "float64" ? sash::DType::float64
                                                         : sash::DType::float32);
  sash::set_tf32_allowed(options.precision == "tf32");
  sash::manual_seed(options.seed);
  Trainer trainer(options, *vocabulary, device);
  print_start(plan, trainer, device, corpus);

  std::optional<double> loss;
  if (plan.trains) {
    const int exit_code = train(plan, trainer, *corpus, loss);
    if (exit_code != 0) return exit_code;
  }
  if (corpus) {
    if (!loss) loss = trainer.validation_loss(*corpus);
    std::printf("validation loss %.3f nats per character; trigram baseline %.3f\n", *loss,
                trigram_loss(*corpus));
  }
  if (plan.writes) {
    std::printf("----\n%s%s\n----\n", options.prompt.c_str(),
                trainer.write(options.prompt, options.generate).c_str());
  }
  return 0;
}
