#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <sash/nn/models/causal_lm.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/grad_scaler.h>
#include <sash/optim/schedule.h>

#include "console.h"
#include "corpus.h"
#include "metrics.h"
#include "options.h"
#include "stop_signals.h"

/// A language model, its optimiser and the current step.
class Trainer {
 public:
  /// Builds the model on `device`. Loads the checkpoint `options.resume` if it is set.
  Trainer(const Options& options, const Vocabulary& vocabulary, sash::Device device);

  /// Trains up to step `options.steps`, or until a signal. Saves to `options.save`, if set, every
  /// `save_every` steps and after the last. Returns the validation loss after the last step, or
  /// nothing if a signal came first. Throws `sash::ValueError` with step and value if loss,
  /// gradient or parameters are not finite; these are never saved.
  std::optional<double> run(const Corpus& corpus, Console& console, Metrics& metrics,
                            const StopSignals& signals);

  /// Mean loss over the whole validation text, in nats per character; nothing if a signal comes.
  std::optional<double> validation_loss(const Corpus& corpus, const StopSignals* signals = nullptr);
  /// Generates `count` characters that continue `prompt`.
  std::string write(const std::string& prompt, int64_t count);
  /// Writes a checkpoint from which a later run continues bit for bit.
  void save(const std::string& path, const Corpus& corpus);

  int64_t step() const { return step_; }
  /// Whether the current step is in a checkpoint: the last one saved, or the one loaded.
  bool is_saved() const { return saved_step_ == step_; }
  bool has_checkpoint() const { return saved_step_ >= 0; }
  const sash::nn::CausalLM& model() const { return *model_; }

 private:
  StepReport train_step(const Corpus& corpus);
  // Loss and gradient norm of a training step on tokens and targets.
  std::vector<sash::Tensor> update(const std::vector<sash::Tensor>& batch);
  void save_now_and_then(const Corpus& corpus, Console& console);
  sash::optim::GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  // Mean loss over a batch, which is copied to the model's device.
  sash::Tensor loss_on(const std::pair<sash::Tensor, sash::Tensor>& batch);

  const Options& options_;
  const Vocabulary& vocabulary_;
  sash::Device device_;
  std::unique_ptr<sash::nn::CausalLM> model_;
  std::unique_ptr<sash::optim::Optimizer> optimizer_;
  std::optional<sash::optim::GradScaler> scaler_;  // with --precision f16
  sash::optim::CapturedStep update_;
  int64_t step_ = 0;
  int64_t saved_step_ = -1;
};
