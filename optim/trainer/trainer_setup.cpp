// What a trainer is made of, and its checkpoints.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <sstream>

#include "../../core/philox.h"
#include "../../tensor/factories.h"
#include "../../tensor/random.h"
#include "../checkpoint.h"
#include "nan_guard.h"
#include "trainer_state.h"

namespace sash::optim {

using detail::kTrainer;

namespace {

// Of the trainer's own entries in a checkpoint.
constexpr const char *kBestSoFar = "trainer.best", *kBestStep = "trainer.best_step",
                     *kPatienceBest = "trainer.patience_best", *kBad = "trainer.bad_validations",
                     *kValidated = "trainer.validated", *kMonitor = "trainer.monitor",
                     *kDirection = "trainer.direction", *kPlateauRate = "trainer.plateau.lr",
                     *kPlateauBest = "trainer.plateau.best",
                     *kPlateauBad = "trainer.plateau.bad_calls",
                     *kPlateauCooling = "trainer.plateau.cooling", *kOffsets = "trainer.offsets";

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // as a best

void check_least(const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw ValueError(kTrainer, std::string(name) + " of at least " + std::to_string(least),
                   std::to_string(value));
}

void check(bool good, const char* expected, const char* got) {
  if (!good) throw ValueError(kTrainer, expected, got);
}

bool is_in(const std::string& file, const std::string& folder) {
  const std::string parent = std::filesystem::path(file).parent_path().string();
  std::error_code none;
  return std::filesystem::equivalent(parent.empty() ? "." : parent, folder, none);
}

const char* direction(const TrainerOptions& options) { return options.maximize ? "max" : "min"; }

template <class T>
std::string exact_text(T value) {
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

Trainer::State::State(nn::Module& trained, Optimizer& stepped, nn::data::Loader* from,
                      BatchFunction numbered, StepFunction function, TrainerOptions chosen)
    : model(trained),
      optimizer(stepped),
      loader(from),
      batches(std::move(numbered)),
      step_function(std::move(function)),
      options(std::move(chosen)),
      folder(options.save, options.keep),
      update([this](const std::vector<Tensor>& tensors) { return run_update(tensors); },
             {.device = optimizer.parameters()[0].device(), .capture = options.capture}) {
  check_options();
  const auto monitored = options.metrics.find(options.monitor);
  if (monitored != options.metrics.end()) {
    options.maximize = monitored->second->higher_is_better();
  }
  if (options.plateau) options.plateau->maximize = options.maximize;
  const double first = optimizer.lr();
  for (size_t group = 0; group < optimizer.num_groups(); ++group) {
    ratios.push_back(first > 0 ? optimizer.lr(group) / first : 1);
  }
  if (options.validate) validation_start = options.validate->state();
  open_folder();
  if (options.group.size() > 1) join_group();
}

// Ranks other than 0 draw from streams of their own, which depend on rank 0's seed.
void Trainer::State::join_group() {
  parallel = std::make_unique<DataParallel>(model, options.group);
  if (options.shard) parallel->shard(optimizer);
  if (leads()) return;
  RandomStates states = random_states();
  const auto fork = [&](RandomState& state) {
    const PhiloxBlock block = philox(state.seed, static_cast<uint64_t>(options.group.rank()));
    state.seed = uint64_t{block.lane[0]} << 32 | block.lane[1];
  };
  fork(states.others);
  for (auto& [device, state] : states.devices) fork(state);
  set_random_states(states);
  // Ranks whose batches differ in size have drawn different amounts.
  std::istringstream offsets(saved_offsets);
  int ranks = 0;
  if (!(offsets >> ranks) || ranks != options.group.size()) return;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Device device : {kCPU, optimizer.parameters()[0].device()}) {
      RandomState state = random_state(device);
      if (offsets >> state.offset && rank == options.group.rank()) set_random_state(state, device);
    }
  }
}

// The number of ranks, then of each rank the offsets of the CPU and of its device.
std::string Trainer::State::offsets_of_ranks() const {
  const Device device = optimizer.parameters()[0].device();
  const std::vector<int64_t> own = {static_cast<int64_t>(random_state(kCPU).offset),
                                    static_cast<int64_t>(random_state(device).offset)};
  std::string text = std::to_string(options.group.size());
  for (const int64_t offset :
       options.group.all_gather(tensor(own, {2}).to(device)).to_vector<int64_t>()) {
    text += " " + std::to_string(offset);
  }
  return text;
}

Trainer::State::Clipping::Clipping(const State& state)
    : optimizer_(state.optimizer),
      max_grad_norm_(optimizer_.max_grad_norm()),
      skip_nonfinite_(optimizer_.skip_nonfinite()) {
  if (state.options.max_grad_norm > 0) {
    optimizer_.set_max_grad_norm(state.options.max_grad_norm);
  } else if (max_grad_norm_ == 0) {
    optimizer_.set_max_grad_norm(std::numeric_limits<double>::infinity());
  }
  if (!state.options.scaler) optimizer_.set_skip_nonfinite(true);
}

Trainer::State::Clipping::~Clipping() {
  optimizer_.set_max_grad_norm(max_grad_norm_);
  optimizer_.set_skip_nonfinite(skip_nonfinite_);
}

void Trainer::State::check_options() const {
  check(loader || batches, "a function of the batches", "an empty one");
  check(static_cast<bool>(step_function), "a step function", "an empty one");
  check_least("steps", options.steps, 0);
  check_least("accumulate", options.accumulate, 1);
  check_least("validate_every", options.validate_every, 0);
  check_least("patience", options.patience, 0);
  check_least("save_every", options.save_every, 0);
  check_least("keep", options.keep, 0);
  check_least("check_every", options.check_every, 0);
  if (!(options.max_grad_norm >= 0)) {
    throw ValueError(kTrainer, "a max_grad_norm of at least 0", to_text(options.max_grad_norm));
  }
  const bool saves = !options.save.empty();
  check(saves || options.save_every == 0, "save with save_every", "none");
  check(saves || !options.keep_best, "save with keep_best", "none");
  check(options.keep > 0 || !options.keep_best, "a keep of 1 or more with keep_best", "0");
  check(saves || options.resume != "auto", "save with resume = \"auto\"", "none");
  const bool validates = options.validate != nullptr;
  check(!validates || options.validate != loader, "another loader as validate", "the training's");
  check(validates || !options.keep_best, "validate with keep_best", "none");
  check(validates || options.patience == 0, "validate with patience", "none");
  check(validates || options.validate_every == 0, "validate with validate_every", "none");
  check(validates || options.metrics.empty(), "validate with metrics", "none");
  for (const auto& [name, metric] : options.metrics) {
    check(metric != nullptr, "metrics that are not null", "null");
    check(name != "loss", "another name than 'loss' for a metric", "'loss'");
  }
  check(options.patience == 0 || options.validate_every > 0, "validate_every with patience",
        "none");
  check(!options.plateau || (validates && options.validate_every > 0),
        "validate and validate_every with plateau", "none");
  check(!options.plateau || !options.schedule, "a schedule or a plateau", "both");
  // Rates of other groups follow the first one's, in the ratio they have now.
  const bool sets_rates = options.schedule || options.plateau;
  check(!sets_rates || optimizer.num_groups() == 1 || optimizer.lr() > 0,
        "a rate of the first group above 0, to which the other rates are in proportion", "0");
}

void Trainer::State::open_folder() {
  const bool automatic = options.resume == "auto";
  const std::string from = automatic ? options.save : options.resume;
  const std::optional<std::string> found = from.empty() ? std::nullopt : newest_checkpoint(from);
  if (!found && !from.empty() && !automatic) {
    throw IoError(kTrainer, "no checkpoint in '" + from + "'");
  }
  if (!options.save.empty()) {
    if (leads()) folder.prepare();
    options.group.barrier();
    const bool goes_on = found && is_in(*found, options.save);
    const bool starts_anew = !goes_on && options.keep > 0 && !options.dry_run;
    if (const auto old = starts_anew ? newest_checkpoint(options.save) : std::nullopt) {
      ValueError error(kTrainer, "a save folder without checkpoints of another run",
                       "'" + *old + "'");
      error.append(
          "resume from it (resume = \"auto\") to continue that run, or save to another folder");
      throw error;
    }
  }
  if (found) load(*found);
}

void Trainer::State::load(const std::string& path) {
  const CheckpointInfo info = checkpoint_info(path);
  const auto number = [&](const char* key, auto& value) {
    const auto entry = info.extra.find(key);
    if (entry == info.extra.end()) return false;
    const std::string& text = entry->second;
    const char* const end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ec == std::errc() && result.ptr == end) return true;
    throw FormatError(kTrainer, std::string("a number as '") + key + "' in " + path, text);
  };
  double saved_best = kNone;
  number(kBestSoFar, saved_best);
  double saved_patience_best = saved_best;
  number(kPatienceBest, saved_patience_best);
  number(kBestStep, best_step);
  number(kBad, bad_validations);
  number(kValidated, validated_step);
  Plateau plateau;
  if (options.plateau) {
    plateau = *options.plateau;
    number(kPlateauRate, plateau.lr);
    number(kPlateauBest, plateau.best);
    number(kPlateauBad, plateau.bad_calls);
    number(kPlateauCooling, plateau.cooling);
  }
  const auto same = [&](const char* key, const std::string& now) {
    const auto entry = info.extra.find(key);
    return entry == info.extra.end() || entry->second == now;
  };
  const bool alike = same(kMonitor, options.monitor) && same(kDirection, direction(options));
  if (options.forget_best || (options.validate && !alike)) {  // figures that do not compare
    saved_best = saved_patience_best = plateau.best = kNone;
    bad_validations = plateau.bad_calls = 0;
  }
  if (!std::isnan(saved_best)) best = saved_best;
  if (!best) best_step = -1;
  if (!std::isnan(saved_patience_best)) patience_best = saved_patience_best;
  if (const auto entry = info.extra.find(kOffsets); entry != info.extra.end()) {
    saved_offsets = entry->second;
  }
  load_checkpoint(path, model, optimizer, options.scaler, loader);
  if (options.plateau) *options.plateau = plateau;
  step = saved_step = info.step;
  // The folder may be another one; and a run that was killed between the two may have saved the
  // best of a step alone.
  std::error_code none;
  const bool is_own = std::filesystem::equivalent(path, folder.path_of(info.step), none);
  if (is_own) {
    regular_step = info.step;
  } else if (options.keep_best && !std::filesystem::exists(folder.best(), none)) {
    best.reset();  // it is not in this folder
    best_step = -1;
  }
  saved_path = path;
}

void Trainer::State::save(const std::string& path) {
  write(path);
  tell_saved(path);
}

void Trainer::State::write(const std::string& path) {
  if (parallel) parallel->average_buffers();
  const std::string offsets = parallel ? offsets_of_ranks() : "";
  if (!leads()) {
    // Rank 0 gathers a shared state twice: to check it and to save it.
    for (int i = 0; i < 2 && options.shard; ++i) optimizer.state_dict();
    saved_step = step;
    saved_path = path;
    return;
  }
  for (const auto& [what, tensors] :
       {std::pair{"parameters", model.state_dict()}, {"optimizer state", optimizer.state_dict()}}) {
    const std::string bad = first_nonfinite(tensors);
    if (bad.empty()) continue;
    throw ValueError(kTrainer,
                     std::string("finite ") + what + " after step " + std::to_string(step),
                     "NaN or infinity in " + bad);
  }
  CheckpointInfo info{.step = step, .extra = options.extra};
  if (best) info.extra[kBestSoFar] = exact_text(*best);
  if (best && best_step >= 0) info.extra[kBestStep] = std::to_string(best_step);
  if (options.validate) {
    info.extra[kMonitor] = options.monitor;
    info.extra[kDirection] = direction(options);
  }
  if (options.patience > 0) {
    info.extra[kBad] = std::to_string(bad_validations);
    info.extra[kPatienceBest] = exact_text(patience_best.value_or(kNone));
  }
  if (!offsets.empty()) info.extra[kOffsets] = offsets;
  if (validated_step >= 0) info.extra[kValidated] = std::to_string(validated_step);
  if (options.plateau) {
    info.extra[kPlateauRate] = exact_text(options.plateau->lr);
    info.extra[kPlateauBest] = exact_text(options.plateau->best);
    info.extra[kPlateauBad] = std::to_string(options.plateau->bad_calls);
    info.extra[kPlateauCooling] = std::to_string(options.plateau->cooling);
  }
  save_checkpoint(path, model, optimizer, info, options.scaler, loader);
  saved_step = step;
  saved_path = path;
}

// Whether it could be written.
bool Trainer::State::write_or_warn(const std::string& path) {
  try {
    write(path);
    return true;
  } catch (const IoError& error) {
    warn("step " + std::to_string(step) + " is not saved: " + error.what());
    return false;
  }
}

void Trainer::State::tell_saved(const std::string& path) const {
  for (const auto& callback : callbacks) callback->on_save(path, step);
}

// A failure is a warning, but an error of the last one.
void Trainer::State::save_regular(bool last) {
  const std::string path = folder.path_of(step);
  if (last) {
    write(path);
  } else if (!write_or_warn(path)) {
    return;
  }
  regular_step = step;
  if (leads()) folder.remove_old(step);
  tell_saved(path);
}

// The steps since the last checkpoint; the error is what the caller must hear of.
void Trainer::State::save_before_error() {
  if (options.save.empty() || options.dry_run) return;
  try {
    save_regular(false);
  } catch (...) {
  }
}

void Trainer::State::save_dry_run() {
  const std::string path = folder.path_of(step) + ".dry_run";
  save(path);
  if (!leads()) return;
  checkpoint_info(path);
  std::error_code error;
  if (!std::filesystem::remove(path, error)) {
    throw IoError(kTrainer, "cannot remove '" + path + "': " + error.message());
  }
}

void Trainer::State::warn(const std::string& text) const {
  for (const auto& callback : callbacks) callback->on_warning(text);
  if (callbacks.empty() && leads()) std::fprintf(stderr, "warning: %s\n", text.c_str());
}

// Whether a rank should stop; all ranks know it then.
bool Trainer::State::agree_to_stop() {
  const bool own = should_stop();
  if (!parallel) return own;
  const double highest =
      options.group.all_reduce(own ? 1.0 + signal : 0.0, distributed::ReduceOp::max);
  if (highest > 1) signal = static_cast<int>(highest) - 1;
  stops = stops || highest > 0;
  return highest > 0;
}

int64_t Trainer::State::of_all_ranks(int64_t count) const {
  return static_cast<int64_t>(options.group.all_reduce(static_cast<double>(count)));
}

bool Trainer::State::should_stop() {
  if (signals) signal = signals->received();
  return stops || (signals && signal != 0);
}

}  // namespace sash::optim
