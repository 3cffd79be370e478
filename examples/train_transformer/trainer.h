#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <sash/nn/models/causal_lm.h>
#include <sash/optim/adam.h>
#include <sash/optim/schedule.h>

#include "console.h"
#include "corpus.h"
#include "metrics.h"
#include "options.h"
#include "stop_signals.h"

/// A language model, its optimiser and its place in the training run.
class Trainer {
 public:
  /// Builds the model on `device`, with the state in `options.resume` if there is one.
  Trainer(const Options& options, const Vocabulary& vocabulary, sash::Device device);

  /// Trains until `options.steps`, or until a signal asks to stop; saves to `options.save`, if it
  /// is set, every `save_every` steps and after the last. Returns the validation loss after the
  /// last step, if it came to that. `sash::ValueError` naming step and value if loss, gradient or
  /// parameters are not finite; these are never saved.
  std::optional<double> run(const Corpus& corpus, Console& console, Metrics& metrics,
                            const StopSignals& signals);

  /// Mean loss over the whole validation text, in nats per character; nothing if a signal came.
  std::optional<double> validation_loss(const Corpus& corpus, const StopSignals* signals = nullptr);
  /// `count` characters that follow `prompt`.
  std::string write(const std::string& prompt, int64_t count);
  /// Everything that a later run needs to go on bit for bit.
  void save(const std::string& path, const Corpus& corpus);

  int64_t step() const { return step_; }
  /// Whether the last save, or the checkpoint of the start, holds this state.
  bool is_saved() const { return saved_step_ == step_; }
  bool has_checkpoint() const { return saved_step_ >= 0; }
  const sash::nn::CausalLM& model() const { return *model_; }

 private:
  StepReport train_step(const Corpus& corpus);
  void save_now_and_then(const Corpus& corpus, Console& console);
  // Mean loss over a batch of the corpus, which is taken to the model's device.
  sash::Tensor loss_on(const std::pair<sash::Tensor, sash::Tensor>& batch);

  const Options& options_;
  const Vocabulary& vocabulary_;
  sash::Device device_;
  std::unique_ptr<sash::nn::CausalLM> model_;
  std::unique_ptr<sash::optim::AdamW> optimizer_;
  int64_t step_ = 0;
  int64_t saved_step_ = -1;
};
