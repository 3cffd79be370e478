#include "trainer.h"

#include <cmath>
#include <exception>
#include <set>

#include "../../core/error.h"
#include "../../core/readable.h"
#include "../../nn/eval_guard.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/draws.h"
#include "trainer_state.h"

namespace sash::optim {

using detail::check_output;
using detail::kTrainer;
using detail::samples_in;

namespace {

// Evaluation for a scope, which leaves generators as they were.
struct Evaluation {
  explicit Evaluation(nn::Module& model) : eval(model) {}
  const NoGradGuard no_grad{};
  const nn::EvalGuard eval;
  const sash::detail::PrivateDraws draws{};
};

}  // namespace

// Brings the validation loader to the start of an epoch, always of the same one.
void Trainer::State::start_validation() {
  nn::data::Loader& from = *options.validate;
  from.load_state(validation_start);
  while (from.position() > 0) from.next();
  validation_start = from.state();
}

// A figure may be part of some batches only, so batches are tried until one has it.
void Trainer::State::check_monitor() {
  if (!options.validate || options.monitor == "loss" || options.metrics.contains(options.monitor)) {
    return;
  }
  start_validation();
  const Evaluation evaluation(model);
  const StepFunction& function = options.validation_step ? options.validation_step : step_function;
  const Device device = optimizer.parameters()[0].device();
  std::set<std::string> names{"loss"};
  for (const auto& [name, metric] : options.metrics) names.insert(name);
  for (nn::data::Batch batch : *options.validate) {
    if (!parallel && should_stop()) return;
    for (Tensor& tensor : batch) tensor = tensor.to(device);
    for (const auto& [name, value] : function(batch).metrics) names.insert(name);
    if (names.contains(options.monitor)) return;
  }
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "'" : ", '") + name + "'";
  throw ValueError(kTrainer, "a figure of the validation as monitor, which are " + known,
                   "'" + options.monitor + "'");
}

std::map<std::string, double> Trainer::State::validate() {
  if (!options.validate) return {};
  start_validation();
  nn::data::Loader& from = *options.validate;
  for (const auto& [name, metric] : options.metrics) metric->reset();
  if (parallel) parallel->average_buffers();
  const Evaluation evaluation(model);
  const StepFunction& function = options.validation_step ? options.validation_step : step_function;
  const Device device = optimizer.parameters()[0].device();
  struct Sum {
    double value = 0, weight = 0;
  };
  std::map<std::string, Sum> sums;
  std::optional<bool> weighted;
  Shape row;
  for (nn::data::Batch batch : from) {
    if (!parallel && should_stop()) return {};
    const auto samples = static_cast<double>(samples_in(batch));
    for (Tensor& tensor : batch) tensor = tensor.to(device);
    const StepOutput output = function(batch);
    check_output(kTrainer, output);
    if (!weighted) weighted = output.weight.defined();
    detail::check_weighted(*weighted, output);
    note_rows(batch, output, row);
    const double count = *weighted ? detail::checked_weight(output.weight) : samples;
    const auto add = [&](const std::string& name, const Tensor& value) {
      Sum& sum = sums[name];
      sum.value += value.item<double>() * count;
      sum.weight += count;
    };
    add("loss", output.loss);
    for (const auto& [name, value] : output.metrics) add(name, value);
    if (options.dry_run) break;
  }
  std::map<std::string, double> means;
  for (auto& [name, sum] : sums) {
    sum.value = options.group.all_reduce(sum.value);
    sum.weight = options.group.all_reduce(sum.weight);
    means[name] = sum.value / sum.weight;
  }
  for (const auto& [name, metric] : options.metrics) {
    if (options.group.size() > 1) metric->sum_ranks(options.group);
    if (!means.emplace(name, metric->compute()).second) {
      throw ValueError(kTrainer, "other names of metrics than of the validation's outputs",
                       "'" + name + "' of both");
    }
  }
  if (!std::isfinite(means["loss"])) {
    throw ValueError(kTrainer, "a finite validation loss at step " + std::to_string(step),
                     to_text(means["loss"]));
  }
  return means;
}

bool Trainer::State::validation_due(bool last) const {
  if (!options.validate || validated_step == step) return false;
  return last || (options.validate_every > 0 && step % options.validate_every == 0);
}

// Whether the patience is at an end.
bool Trainer::State::validate_and_compare(StepReport* report) {
  const std::map<std::string, double> found = validate();
  if (found.empty()) return false;
  validation = found;
  if (report) report->validation = found;
  validated_step = step;
  const double value = found.at(options.monitor);
  const auto improve = [&](std::optional<double>& on) {
    const bool better =
        !std::isnan(value) && (!on || (options.maximize ? value > *on : value < *on));
    if (better) on = value;
    return better;
  };
  unsaved_best = improve(best);
  if (unsaved_best) best_step = step;
  // A run of more steps has no validation after this run's last one.
  if (options.validate_every == 0 || step % options.validate_every != 0) return false;
  bad_validations = improve(patience_best) ? 0 : bad_validations + 1;
  if (options.plateau) (*options.plateau)(value);
  return options.patience > 0 && bad_validations >= options.patience;
}

// After the callbacks: who resumes from it has seen its step.
void Trainer::State::save_best() {
  const bool saves = unsaved_best && options.keep_best && !options.dry_run;
  unsaved_best = false;
  if (saves && write_or_warn(folder.best())) tell_saved(folder.best());
}

void Trainer::State::begin() {
  stops = false;
  signal = 0;
  steps_here = 0;
  ending.clear();
  if (options.stop_on_signals) signals.emplace();
}

std::string Trainer::State::ending_of(TrainerEnd end) const {
  const std::string after = " after step " + std::to_string(step) + " of " + std::to_string(goal());
  std::string text;
  if (end == TrainerEnd::patience) {
    text = "ended" + after + ": " + std::to_string(bad_validations) + " validations without a " +
           "better " + options.monitor;
  } else if (end == TrainerEnd::signal) {
    text = "stopped by " + signal_name(signal) + after;
  } else {
    text = (end == TrainerEnd::stopped ? "stopped" : "ended") + after;
  }
  if (!best) return text;
  text += "; the best " + options.monitor + " is " + to_text(*best, std::chars_format::general, 6);
  return best_step < 0 ? text : text + ", of step " + std::to_string(best_step);
}

TrainerEnd Trainer::State::run() {
  const Clipping clipping(*this);
  check_monitor();
  if (!model.is_training()) model.train();  // else parts in evaluation mode stay so
  // A signal may have come before this step was validated.
  bool patience_over = options.patience > 0 && bad_validations >= options.patience;
  if (step > 0 && step <= goal() && validation_due(step == goal())) {
    patience_over = validate_and_compare(nullptr);
    save_best();
  }
  while (step < goal() && !patience_over && !agree_to_stop()) {
    StepReport report = train_step();
    const bool last = step == goal();
    if (parallel && options.check_every > 0 && step % options.check_every == 0) {
      parallel->check_equal();
    }
    try {
      if (validation_due(last)) patience_over = validate_and_compare(&report);
    } catch (...) {
      save_before_error();
      throw;
    }
    for (const auto& callback : callbacks) callback->on_step(report);
    warn_of_capture();
    save_best();
    const bool saves = options.save_every > 0 && step % options.save_every == 0;
    if (saves && !last && !options.dry_run) save_regular(false);
  }
  if (!options.save.empty() && options.dry_run) {
    save_dry_run();
  } else if (!options.save.empty() && regular_step != step) {
    save_regular(true);
  }
  if (signal != 0) return TrainerEnd::signal;
  if (patience_over) return TrainerEnd::patience;
  return step >= goal() ? TrainerEnd::steps : TrainerEnd::stopped;
}

Trainer::Trainer(nn::Module& model, Optimizer& optimizer, nn::data::Loader& loader,
                 StepFunction step, TrainerOptions options)
    : state_(std::make_unique<State>(model, optimizer, &loader, BatchFunction(), std::move(step),
                                     std::move(options))) {}

Trainer::Trainer(nn::Module& model, Optimizer& optimizer, BatchFunction batches, StepFunction step,
                 TrainerOptions options)
    : state_(std::make_unique<State>(model, optimizer, nullptr, std::move(batches), std::move(step),
                                     std::move(options))) {}

Trainer::~Trainer() = default;

void Trainer::add(std::shared_ptr<Callback> callback) {
  if (!callback) throw ValueError("Trainer.add", "a callback", "null");
  if (!state_->leads()) return;
  state_->callbacks.push_back(std::move(callback));
}

void Trainer::add(Callback& callback) { add({std::shared_ptr<void>(), &callback}); }

TrainerEnd Trainer::run() {
  TrainerEnd end{};
  std::exception_ptr first_error;
  const auto attempt = [&](auto call) {
    try {
      call();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  };
  attempt([&] {
    state_->begin();
    for (const auto& callback : state_->callbacks) callback->on_start(*this);
    end = state_->run();
    state_->ending = state_->ending_of(end);
  });
  for (const auto& callback : state_->callbacks) attempt([&] { callback->on_end(*this); });
  state_->signals.reset();
  state_->stops = false;
  if (!first_error) return end;
  try {
    std::rethrow_exception(first_error);
  } catch (Error& error) {
    if (state_->saved_step >= 0) error.append(state_->saved_path + " is the last good checkpoint");
    throw;
  }
}

void Trainer::stop() { state_->stops = true; }
std::map<std::string, double> Trainer::validate() { return state_->validate(); }
void Trainer::save(const std::string& path) { state_->save(path); }
nn::Module& Trainer::model() const { return state_->model; }
Optimizer& Trainer::optimizer() const { return state_->optimizer; }
const TrainerOptions& Trainer::options() const { return state_->options; }
int64_t Trainer::step() const { return state_->step; }
int64_t Trainer::saved_step() const { return state_->saved_step; }
int Trainer::signal() const { return state_->signal; }
const std::map<std::string, double>& Trainer::validation() const { return state_->validation; }
std::optional<double> Trainer::best() const { return state_->best; }
int64_t Trainer::best_step() const { return state_->best_step; }
const std::string& Trainer::ending() const { return state_->ending; }

}  // namespace sash::optim
