#pragma once

#include "../../core/error.h"
#include "../captured_step.h"
#include "../data_parallel.h"
#include "checkpoint_folder.h"
#include "stop_signals.h"
#include "trainer.h"

namespace sash::optim {

namespace detail {

constexpr const char* kTrainer = "Trainer";  // in errors

/// Samples of a batch: the first axis of its first tensor.
inline int64_t samples_in(const nn::data::Batch& batch) {
  return batch.empty() || batch[0].rank() == 0 ? 1 : batch[0].size(0);
}

/// Throws, naming `op`, unless loss and metrics have one element, and names of their own.
void check_output(const char* op, const StepOutput& output);
/// Throws unless it is finite and above 0.
double checked_weight(const Tensor& weight);
/// Throws unless the output has a weight, or none, as other batches have.
void check_weighted(bool expected, const StepOutput& output);

/// A metric, summed over the batches of an update that have it.
struct MetricSum {
  std::string name;
  Tensor sum, shares;
  int64_t batches;
};

/// What the batches of an update add up to. With weights, each counts as its share, its weight over
/// the first one's: equal weights are shares of 1, which change no bit.
struct UpdateSums {
  int64_t batches = 0;
  Tensor loss{}, first_weight{}, shares{};  ///< the last two undefined without weights
  Shape row{};                              ///< of a batch of one row without a weight
  std::vector<MetricSum> metrics{};

  Tensor share_of(const StepOutput& output, const distributed::Group& group);
  void add(const StepOutput& output, const Tensor& share);
};

}  // namespace detail

struct Trainer::State {
  State(nn::Module& trained, Optimizer& stepped, nn::data::Loader* from, BatchFunction numbered,
        StepFunction function, TrainerOptions chosen);

  /// Sets the optimizer's clipping, for a scope: other trainers may share it.
  class Clipping {
   public:
    explicit Clipping(const State& state);
    ~Clipping();
    Clipping(const Clipping&) = delete;
    Clipping& operator=(const Clipping&) = delete;

   private:
    Optimizer& optimizer_;
    double max_grad_norm_;
    bool skip_nonfinite_;
  };

  nn::Module& model;
  Optimizer& optimizer;
  nn::data::Loader* loader;  // null if the batches have numbers
  BatchFunction batches;     // empty if there is a loader
  StepFunction step_function;
  TrainerOptions options;
  CheckpointFolder folder;
  std::vector<double> ratios;                // of the groups' rates to the first
  std::unique_ptr<DataParallel> parallel{};  // null in a group of one
  std::string saved_offsets{};               // of the ranks' generators, in the checkpoint
  CapturedStep update;
  std::vector<std::pair<std::string, int64_t>> metrics{};  // of an update: names, batches with them
  struct KeptBuffer {
    Tensor buffer, kept{};
    uint32_t version = 0;  // of the buffer when it was kept
    bool written = false;  // by steps, which replays of a graph do not count
  };
  std::vector<KeptBuffer> buffers{};  // that are saved
  std::vector<std::shared_ptr<Callback>> callbacks{};
  std::string validation_start{};             // of the validation loader
  std::vector<nn::data::Batch> overfitted{};  // the batches of every step, with overfit_batch
  int64_t step = 0, validated_step = -1;
  int64_t saved_step = -1, regular_step = -1;  // the latter in the folder, besides the best
  std::string saved_path{};
  int64_t steps_here = 0;                      // of this run
  std::map<std::string, double> validation{};  // the last
  std::optional<double> best{};
  int64_t best_step = -1;
  bool unsaved_best = false;
  std::optional<double> patience_best{};  // of the validations that count for the patience
  int64_t bad_validations = 0;
  bool told_rows = false;  // that batches of one row count alike
  bool stops = false;
  std::optional<StopSignals> signals{};
  int signal = 0;
  std::string ending{};

  void check_options() const;
  void open_folder();
  void load(const std::string& path);
  void save(const std::string& path);
  void write(const std::string& path);
  bool write_or_warn(const std::string& path);
  void tell_saved(const std::string& path) const;
  void save_regular(bool last);
  void save_before_error();
  void save_best();
  void save_dry_run();
  void warn(const std::string& text) const;
  bool should_stop();
  bool agree_to_stop();
  int64_t of_all_ranks(int64_t count) const;
  bool leads() const { return options.group.rank() == 0; }
  void join_group();
  std::string offsets_of_ranks() const;
  void add_ranks(detail::UpdateSums& sums) const;
  int64_t goal() const { return options.dry_run ? step + 1 - steps_here : options.steps; }

  std::vector<nn::data::Batch> next_batches();
  void set_rate();
  std::vector<Tensor> run_update(const std::vector<Tensor>& tensors);
  void backward(const nn::data::Batch& batch, detail::UpdateSums& sums, bool reduce);
  detail::UpdateSums backward_all(const std::vector<Tensor>& tensors, bool reduce);
  void note_rows(const nn::data::Batch& batch, const StepOutput& output, Shape& row);
  void keep_buffers();
  void put_back_buffers();
  StepReport train_step();
  [[noreturn]] void refuse(const std::string& what, double value, const std::vector<Tensor>& batch,
                           const sash::detail::DrawsPlace& before);
  void warn_of_capture();
  std::map<std::string, double> validate();
  void start_validation();
  void check_monitor();
  std::string ending_of(TrainerEnd end) const;
  bool validate_and_compare(StepReport* report);
  bool validation_due(bool last) const;
  void begin();
  TrainerEnd run();
};

}  // namespace sash::optim
