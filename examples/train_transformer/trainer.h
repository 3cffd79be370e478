#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include <sash/nn/causal_lm.h>
#include <sash/optim/adam.h>
#include <sash/optim/schedule.h>

#include "console.h"
#include "corpus.h"
#include "options.h"

/// A language model, its optimiser and its place in the training run.
class Trainer {
 public:
  /// Builds the model on `device`, or reads it from `options.resume`, whose sizes then replace the
  /// options'.
  Trainer(Options& options, const Corpus& corpus, sash::Device device);

  /// Trains until `options.steps`, or until `stop` is set. Says how it goes.
  void run(Console& console, Metrics& metrics, const std::atomic<bool>& stop);

  /// Mean loss over the whole validation text, in nats per character.
  double validation_loss();
  /// `count` characters that follow `prompt`.
  std::string write(const std::string& prompt, int64_t count);
  /// Everything that a later run needs to go on bit for bit.
  void save(const std::string& path) const;

  int64_t step() const { return step_; }
  const sash::nn::CausalLM& model() const { return *model_; }

 private:
  StepReport train_step();
  // Mean loss over a batch of the corpus, which is taken to the model's device.
  sash::Tensor loss_on(const std::pair<sash::Tensor, sash::Tensor>& batch);

  const Options& options_;
  const Corpus& corpus_;
  sash::Device device_;
  std::unique_ptr<sash::nn::CausalLM> model_;
  std::unique_ptr<sash::optim::AdamW> optimizer_;
  int64_t step_ = 0;
};
