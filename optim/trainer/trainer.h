#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../nn/data/loader.h"
#include "../../nn/module.h"
#include "../../tensor/distributed/group.h"
#include "../grad_scaler.h"
#include "../metrics/metric.h"
#include "../optimizer.h"
#include "../schedule.h"
#include "callback.h"

namespace sash::optim {

/// The result of a step function for a batch: the loss to minimise, a scalar, and metrics to
/// report, such as the accuracy, as scalars by name. Names are distinct, and not "loss". A `Tensor`
/// converts to a loss without metrics.
///
/// `weight`, above 0, is the number of samples or tokens that loss and metrics are means of:
///
///     return {cross_entropy(logits, targets), {}, targets.numel()};  // a packed batch
///     return {cross_entropy(logits, targets), {}, ne(targets, -100).sum()};
///
/// Validations then average over all of them, and so do the `accumulate` batches of an update: with
/// losses l_i of weights w_i, the update's loss is sum w_i l_i / sum w_i; metrics and gradients
/// alike. Equal weights give the same bits as no weights. A tensor weight is on the loss's device,
/// and a captured graph reads it in each step; a number is a constant of the graph.
struct SASH_API StepOutput {
  using Metrics = std::vector<std::pair<std::string, Tensor>>;

  StepOutput(Tensor loss_of_batch, Metrics others = {}, Tensor weight_of_batch = {})
      : loss(std::move(loss_of_batch)),
        metrics(std::move(others)),
        weight(std::move(weight_of_batch)) {}
  template <class Number>
  requires std::is_arithmetic_v<Number> StepOutput(const Tensor& loss_of_batch, Metrics others,
                                                   Number weight_of_batch)
      : StepOutput(loss_of_batch, std::move(others),
                   scalar_on(loss_of_batch, static_cast<double>(weight_of_batch))) {}

  Tensor loss;
  Metrics metrics;
  Tensor weight;  ///< one element; undefined: batches of an update count alike, and those of a
                  ///< validation by their samples, the first axis of a batch's first tensor

 private:
  static Tensor scalar_on(const Tensor& loss, double value);
};

/// Loss and metrics, means over a batch, and its weight. A metric that only some batches have is
/// averaged over those batches.
using StepFunction = std::function<StepOutput(const nn::data::Batch& batch)>;
/// Batch number `index`, from 0; the same in each call, so that nothing need be saved.
using BatchFunction = std::function<nn::data::Batch(int64_t index)>;

/// Names are those of PyTorch Lightning, Hugging Face or Keras where they have one.
struct TrainerOptions {
  int64_t steps = 0;             ///< updates in all, those before a resume included
  Schedule schedule{};           ///< learning rate of each update; groups keep their ratios to the
                                 ///< first. Without one, the optimizer's rates stay
  int64_t accumulate = 1;        ///< batches of an update; their gradients are averaged, by the
                                 ///< weights of `StepOutput` if it has them
  double max_grad_norm = 0;      ///< clips gradients; 0: as the optimizer was made
  GradScaler* scaler = nullptr;  ///< for float16
  bool capture = false;          ///< record the step as a CUDA graph (`CapturedStep`)
  distributed::Group group{};    ///< ranks that train the model together (`DataParallel`)
  bool shard = false;  ///< with a group: each rank has a part of the optimizer's state and
                       ///< of the gradients (`DataParallel::shard`)
  int64_t check_every =
      0;  ///< with a group: steps between checks that all ranks have the same bits
          ///< (`DataParallel::check_equal`); 0: never

  nn::data::Loader* validate = nullptr;      ///< not the training's: each validation starts it anew
  StepFunction validation_step{};            ///< without one, the step function
  std::map<std::string, Metric*> metrics{};  ///< figures of a whole validation by name, which
                                             ///< `validation_step` updates; see `Metric`
  int64_t validate_every = 0;    ///< steps between validations; 0: only after the last step
  std::string monitor = "loss";  ///< the validation's figure that decides what is best; NaN never
                                 ///< is. With another one, a resumed run forgets the best
  bool maximize = false;         ///< whether more of it is better; a `Metric` knows it itself
  int64_t patience = 0;  ///< validations without a better one after which training ends; 0: never.
                         ///< Of those of `validate_every`, as for the plateau
  std::optional<Plateau> plateau{};  ///< in place of a schedule, for the rate; judges by `monitor`
                                     ///< and `maximize`

  std::string save{};      ///< folder of checkpoints; with `keep` 0 a file that each replaces
  int64_t save_every = 0;  ///< steps between checkpoints; 0: only after the last step
  int64_t keep = 1;        ///< newest checkpoints that stay in the folder
  bool keep_best = false;  ///< whether the best by `monitor` stays there too, best.safetensors
  std::string resume{};    ///< a checkpoint, a folder of them, or "auto": the newest of `save`, if
                           ///< there is one
  bool forget_best = false;  ///< with resume: the best is counted anew, for other validation data
  std::map<std::string, std::string> extra{};  ///< the caller's own, for the checkpoints

  bool stop_on_signals = false;  ///< SIGINT, SIGTERM and their like end the training after a step
  bool overfit_batch = false;    ///< train on the first batch alone: the loss must go to 0
  bool dry_run = false;  ///< a step, a batch of validation, and a checkpoint that is removed again
};

/// Why a training ended.
enum class TrainerEnd { steps, patience, stopped, signal };

/// A training loop.
///
///     optim::Trainer trainer(model, optimizer, loader, [&](const nn::data::Batch& batch) {
///       return cross_entropy(model(batch[0]), batch[1]);
///     }, {.steps = 2000, .validate = &valid_loader, .validate_every = 200,
///         .save = "runs/a", .save_every = 500, .resume = "auto"});
///     trainer.run();
///
/// If batches are one row of tokens, [1, N], with different N, and their outputs have no weight,
/// the first validation or update of several batches warns that all batches count equally.
///
/// Losses and parameters have the same bits as a loop written by hand, and a resumed run has
/// the same bits as a run without a break. Checkpoints have model, optimizer, scaler, random
/// state, the loader's place, the best validation so far, and the plateau's state.
/// Validations change only the last two. Model, optimizer, loaders and scaler must outlive
/// the trainer.
///
/// With a `group`, each rank has a trainer and takes its own batches: those of a `Loader` with the
/// same group, or of a function the batches number i * size + rank. An update averages over all
/// ranks; losses, metrics, weights and validations count for all of them, so each rank's outputs
/// have the same metrics. Ranks other than 0 draw other random numbers than rank 0, write no files,
/// and run no callbacks. All ranks read the checkpoint of `resume`. If one rank is told to stop,
/// all stop after the same step.
///
/// If a gradient is not finite, the update is not made and the training ends (with a scaler, the
/// update is skipped). The model stays unchanged, running statistics included. NaN and infinity are
/// never saved.
///
/// If a validation throws, the steps before it are saved first. `run` switches a model in
/// evaluation mode to training mode; parts of a model in training mode keep their modes.
class SASH_API Trainer {
 public:
  /// `ValueError` for options that contradict each other, a folder that already has checkpoints
  /// unless `resume` is one of them, or with `keep` 0 a file that is not a checkpoint. `IoError` if
  /// nothing can be written to `save`. Loads the checkpoint of `resume`, with the errors of
  /// `load_checkpoint`.
  Trainer(nn::Module& model, Optimizer& optimizer, nn::data::Loader& loader, StepFunction step,
          TrainerOptions options);
  /// On batches by number.
  Trainer(nn::Module& model, Optimizer& optimizer, BatchFunction batches, StepFunction step,
          TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Adds a callback, called in the order of adding. If there are none, warnings go to stderr.
  void add(std::shared_ptr<Callback> callback);
  /// The same for a callback that outlives the trainer.
  void add(Callback& callback);

  /// Trains up to `steps`. `ValueError` for a `monitor` that is no figure of the validation, before
  /// the first step: it validates until the figure is found, if it is neither "loss" nor one of
  /// `metrics`. `ValueError` that names the step, and the op that made it, for a loss or
  /// gradient that is not finite, or a weight that is not above 0. `IoError` if the last checkpoint
  /// cannot be written; for earlier checkpoints that is a warning.
  TrainerEnd run();
  /// Ends `run` after the current step, or before the first; for callbacks.
  void stop();
  /// Mean loss and metrics over the validation loader, by name: each batch counts as its weight
  /// says. Empty without a loader, or if a signal arrived during the validation. `ValueError` if
  /// the loss is not finite, a weight is not above 0, or some batches have one and others not.
  std::map<std::string, double> validate();
  /// Writes a checkpoint to a file. `ValueError` if a parameter or the optimizer's state is not
  /// finite, `IoError` if it cannot be written; then an old file stays.
  void save(const std::string& path);

  nn::Module& model() const;
  Optimizer& optimizer() const;
  const TrainerOptions& options() const;
  /// The number of updates so far.
  int64_t step() const;
  /// The step of the last checkpoint that was written or loaded; -1 if there is none.
  int64_t saved_step() const;
  /// The signal that ended the training, or 0.
  int signal() const;
  /// The figures of the last validation of `run`; empty if there was none.
  const std::map<std::string, double>& validation() const;
  /// The best of the validations' `monitor`, if there was one.
  std::optional<double> best() const;
  /// The step of the best; -1 if there was none.
  int64_t best_step() const;
  /// Why the last `run` ended, after which step, and the best of `monitor`, as a sentence. Empty
  /// before, and after an error.
  const std::string& ending() const;

 private:
  struct State;
  Owned<State> state_;
};

}  // namespace sash::optim
