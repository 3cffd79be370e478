#include "run.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <sash/core/readable.h>
#include <sash/nn/data/token_dataset.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/logging/html_report.h>
#include <sash/optim/logging/metrics_log.h>
#include <sash/optim/logging/progress_line.h>
#include <sash/optim/logging/summary_writer.h>
#include <sash/optim/trainer/checkpoint_folder.h>
#include <sash/optim/trainer/stop_signals.h>
#include <sash/optim/trainer/trainer.h>
#include <sash/sash.h>
#include <sash/tensor/io/replacement_file.h>

#include "../support/program.h"
#include "corpus.h"
#include "model.h"
#include "report.h"
#include "settings.h"
#include "step_profile.h"

namespace {

namespace fs = std::filesystem;
namespace data = sash::nn::data;
namespace optim = sash::optim;
using optim::CheckpointInfo;
using sash::distributed::Group;

constexpr int64_t kValidateEvery = 500;

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
    check_distinct("--report", options.report, flag, path);
  }
  check_distinct("--report", options.report, "--metrics", options.metrics);
  check_distinct("--report", options.report, "--profile", options.profile);
  check_distinct("--profile", options.profile, "--metrics", options.metrics);
  if (!options.profile.empty()) sash::ReplacementFile(kOp, options.profile);
  check_distinct("--save", options.save, "--text", options.text);
  if (options.save.empty() || !plan.trains || options.dry_run || options.keep > 0) return;
  if (fs::is_regular_file(options.save) && options.save != options.resume) {
    const CheckpointInfo old = optim::checkpoint_info(options.save);
    entry(old, "vocabulary", options.save);
    print_line(options.save + " (step " + std::to_string(old.step) + ") will be overwritten");
  }
}

// Checkpoint of a run without --save that is stopped by a signal: an unused file name.
std::string spare_path() {
  std::string path = "train_transformer.safetensors";
  for (int i = 1; fs::exists(path); ++i) {
    path = "train_transformer." + std::to_string(i) + ".safetensors";
  }
  return path;
}

// Of a folder, --resume takes the newest checkpoint, and --save is that folder.
void open_resumed(Plan& plan, Options& options) {
  if (options.resume.empty()) return;
  const std::string given = options.resume;
  const auto found = optim::newest_checkpoint(given);
  if (!found) throw sash::IoError(kOp, "no checkpoint in " + given);
  options.resume = *found;
  plan.start = optim::checkpoint_info(*found);
  take_settings(plan.start.extra, options);
  if (options.save.empty()) options.save = given;
  if (options.keep == 0 && fs::is_directory(options.save)) {
    if (options.has("keep")) {
      throw sash::ValueError(kOp, "--keep 1 or more with a folder, " + options.save, "0");
    }
    const auto kept = plan.start.extra.find("keep");
    options.keep =
        kept == plan.start.extra.end() ? 1 : std::max(1LL, std::atoll(kept->second.c_str()));
  }
}

// Flags that ask for training where there will be none: `wanted` says whether --steps or --text is
// given, with too few steps then.
void refuse_training_flags(const Plan& plan, const Options& options, bool wanted) {
  for (const char* flag :
       {"steps", "save", "save-every", "keep", "metrics", "tensorboard", "report", "profile",
        "log-every", "lr", "dropout", "dry-run", "overfit-batch"}) {
    if (!options.has(flag)) continue;
    if (!wanted) {
      throw sash::ValueError(kOp, std::string("--steps or --text with --resume and --") + flag,
                             "neither, which trains nothing");
    }
    const std::string with = options.has("steps") ? "" : std::string(", with --") + flag;
    throw sash::ValueError(kOp,
                           "--steps above " + std::to_string(plan.start.step) + ", the step of " +
                               options.resume + with,
                           std::to_string(options.steps));
  }
}

Plan make_plan(Options options) {
  Plan plan;
  open_resumed(plan, options);
  const bool resumes = !options.resume.empty();
  const bool wanted = !resumes || options.has("steps") || options.has("text");
  plan.trains = wanted && (!resumes || plan.start.step < options.steps);
  if (!plan.trains) refuse_training_flags(plan, options, wanted);
  const bool in_folder = plan.start.extra.contains("keep") && !fs::is_directory(options.save);
  if (plan.trains && in_folder && !options.has("save")) {
    throw sash::ValueError(kOp, "--save with --resume of a file that --keep made", options.resume);
  }
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

// Whether the checkpoint's run had another text.
bool has_other_text(const Plan& plan, const Corpus& corpus) {
  const auto known = plan.start.extra.find("fingerprint");
  return known != plan.start.extra.end() && known->second != corpus.fingerprint();
}

std::optional<Corpus> load_corpus(const Plan& plan, const std::optional<Vocabulary>& vocabulary) {
  if (!plan.needs_text) return std::nullopt;
  Corpus corpus = plan.options.text.empty() ? Corpus::bundled(vocabulary)
                                            : Corpus::from_file(plan.options.text, vocabulary);
  corpus.check_context(plan.options.context);
  if (has_other_text(plan, corpus)) {
    print_line("note: the text differs from the one " + plan.options.resume + " was trained on" +
               (plan.trains && plan.options.keep > 0 ? "; the best is counted anew" : ""));
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

void print_start(const Plan& plan, const sash::nn::CausalLM& model, int64_t step,
                 sash::Device device, const std::optional<Corpus>& corpus) {
  const Options& options = plan.options;
  print_line(options.precision + ", " + std::to_string(model.num_parameters()) +
             " parameters, on " + to_string(device) + " (" +
             sash::backend(device.type).description(device) + ")");
  if (corpus) {
    print_line(std::to_string(corpus->train().size()) + " training characters, " +
               std::to_string(corpus->valid().size()) + " validation characters, " +
               std::to_string(corpus->vocabulary().size()) + " distinct");
  }
  if (!options.resume.empty()) {
    print_line(options.resume + " is at step " + std::to_string(step) + " of " +
               std::to_string(options.steps));
    if (!plan.trains) {
      const bool over = step >= options.steps;
      print_line(std::string("no training: that needs ") +
                 (over ? "more --steps" : "--steps or --text"));
    }
  } else if (options.save.empty()) {
    try {
      sash::ReplacementFile(kOp, spare_path());
      print_line("no --save: a checkpoint is written only if a signal stops the training");
    } catch (const sash::IoError& error) {
      print_line(
          std::string("no --save: nothing is kept, not even if a signal stops the training: ") +
          error.what());
    }
  }
  std::fflush(stdout);
}

optim::TrainerOptions trainer_options(const Options& options, const Corpus& corpus,
                                      data::Loader& valid, optim::GradScaler* scaler,
                                      const Group& ranks) {
  const bool saves = !options.save.empty();
  optim::TrainerOptions chosen{
      .steps = options.steps,
      .schedule = optim::WarmupCosine{.lr = options.lr,
                                      .warmup = std::min<int64_t>(50, options.steps / 10),
                                      .total = std::max<int64_t>(1, options.steps),
                                      .floor = options.lr / 20},
      .scaler = scaler,
      .capture = options.capture,
      .group = ranks,
      .validate = &valid,
      .validate_every = kValidateEvery,
      .save = options.save,
      .save_every = saves ? options.save_every : 0,
      .keep = options.keep,
      .keep_best = saves && options.keep > 0,
      .resume = options.resume,
      .extra = settings_of(options),
      .stop_on_signals = true,
      .overfit_batch = options.overfit_batch,
      .dry_run = options.dry_run};
  chosen.extra["vocabulary"] = corpus.vocabulary().hex();
  chosen.extra["fingerprint"] = corpus.fingerprint();
  if (options.keep > 0) chosen.extra["keep"] = std::to_string(options.keep);
  if (options.dry_run && !saves) {
    chosen.save = spare_path();
    chosen.keep = 0;
  }
  return chosen;
}

// A dry run only looks whether it could write the metrics.
void check_metrics(const std::string& path) {
  const bool exists = fs::exists(path);
  optim::MetricsLog{path};
  if (!exists) fs::remove(path);
}

struct Ending {
  int signal = 0;  // that stopped the training
  double validation_loss = 0;
  std::vector<std::string> lost{};  // what could not be written
};

// Trains if the plan says so, and validates.
Ending train(const Plan& plan, sash::nn::CausalLM& model, const Corpus& corpus, sash::Device device,
             optim::HtmlReport* report) {
  const Options& options = plan.options;
  const Group ranks = sash::distributed::world();
  const auto optimizer = make_optimizer(options, model);
  std::optional<optim::GradScaler> scaler;
  if (options.precision == "f16") scaler.emplace();
  data::Loader valid(data::TokenDataset(data::Tokens(corpus.valid()), options.context),
                     {.batch = options.batch, .device = device, .group = ranks});
  StepProfile profile(options.profile);
  optim::TrainerOptions chosen =
      trainer_options(options, corpus, valid, scaler ? &*scaler : nullptr, ranks);
  chosen.forget_best = has_other_text(plan, corpus);
  if (!plan.trains) chosen.save.clear(), chosen.save_every = 0, chosen.keep_best = false;
  chosen.validation_step = [&](const data::Batch& batch) {
    profile.stop();
    return loss_on(model, batch[0], batch[1]);
  };
  optim::Trainer trainer(
      model, *optimizer,
      [&](int64_t step) {
        return corpus.batch(options.batch, options.context, options.seed, step);
      },
      [&](const data::Batch& batch) { return loss_on(model, batch[0], batch[1]); }, chosen);
  print_start(plan, model, trainer.step(), device, corpus);
  if (!plan.trains) {
    return {.validation_loss = trainer.validate().at("loss")};
  }
  optim::ProgressLine progress({.log_every = options.log_every, .device = device});
  std::optional<optim::MetricsLog> metrics;
  std::optional<optim::SummaryWriter> board;
  if (ranks.rank() != 0) {
    // The trainer of rank 0 runs the callbacks.
  } else if (!options.dry_run) {
    if (!options.metrics.empty()) metrics.emplace(options.metrics);
    if (!options.tensorboard.empty()) board.emplace(options.tensorboard);
  } else if (!options.metrics.empty()) {
    check_metrics(options.metrics);
  }
  trainer.add(progress);
  if (metrics) trainer.add(*metrics);
  if (board) trainer.add(*board);
  if (report) trainer.add(*report);
  if (!options.profile.empty() && !options.dry_run) trainer.add(profile);
  const optim::StopSignals signals;  // also while it says that it saved
  const optim::TrainerEnd end = trainer.run();
  const bool stopped = end == optim::TrainerEnd::signal;
  const std::string path = options.save.empty() && stopped ? spare_path() : options.save;
  if (!path.empty() && !options.dry_run) {
    if (options.save.empty()) trainer.save(path);
    print_line("saved step " + std::to_string(trainer.step()) + " to " + path);
    std::fflush(stdout);
  }
  if (stopped) {
    std::fprintf(stderr, "stopped by %s\n", optim::signal_name(trainer.signal()).c_str());
    return {.signal = trainer.signal()};
  }
  std::map<std::string, double> validation = trainer.validation();
  if (validation.empty()) validation = trainer.validate();  // not a step was made
  Ending ending{.validation_loss = validation.at("loss")};
  if (metrics && metrics->failed()) ending.lost.push_back(options.metrics + " lacks metrics");
  if (profile.failed()) ending.lost.push_back(options.profile + " lacks the trace");
  return ending;
}

std::string write(const Plan& plan, sash::nn::CausalLM& model, const Vocabulary& vocabulary) {
  const Options& options = plan.options;
  return vocabulary.decode(model.generate(vocabulary.encode("a --prompt", options.prompt),
                                          options.generate,
                                          {.temperature = options.temperature,
                                           .seed = options.seed,
                                           .stride = std::max<int64_t>(1, options.context / 4)}));
}

}  // namespace

int run(Options chosen) {
  const Group ranks = sash::distributed::world();
  if (ranks.rank() != 0 && !std::freopen("/dev/null", "w", stdout)) return 1;  // rank 0 speaks
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
  const auto model = make_model(options, vocabulary->size(), device);
  std::optional<optim::HtmlReport> report;
  if (plan.trains && !options.report.empty() && ranks.rank() == 0) {
    report.emplace(options.report,
                   optim::HtmlReportOptions{.title = "train_transformer, " + options.attention});
  }
  const bool reports = report && !options.dry_run;
  Ending ending;
  if (corpus) {
    ending = train(plan, *model, *corpus, device, reports ? &*report : nullptr);
    if (ending.signal != 0) return 128 + ending.signal;
    constexpr auto fixed = std::chars_format::fixed;
    print_line("validation loss " + sash::to_text(ending.validation_loss, fixed, 3) +
               " nats per character; trigram baseline " +
               sash::to_text(trigram_loss(*corpus), fixed, 3));
  } else {
    optim::load_model(options.resume, *model);
    print_start(plan, *model, plan.start.step, device, corpus);
  }
  std::string written;
  if (plan.writes) {
    written = options.prompt + write(plan, *model, *vocabulary);
    const std::string framed = "----\n" + written + "\n----\n";
    std::fwrite(framed.data(), 1, framed.size(), stdout);
  }
  if (reports) finish_report(*report, options, *model, written, corpus->valid(), device);
  for (const std::string& lost : ending.lost) std::fprintf(stderr, "error: %s\n", lost.c_str());
  return ending.lost.empty() ? 0 : 1;
}
