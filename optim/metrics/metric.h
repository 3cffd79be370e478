#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../tensor/distributed/group.h"
#include "../../tensor/tensor.h"

/// Figures of a whole validation set, for a `Trainer` (`TrainerOptions::metrics`) and for loops of
/// your own:
///
///     optim::F1 f1(10);
///     for (const nn::data::Batch& batch : loader) f1.update(model(batch[0]), batch[1]);
///     std::cout << f1.compute() << "\n";
namespace sash::optim {

/// Counts over the batches since it was made or reset. The figure is that of all their rows
/// together; a mean of the batches' figures would be another number for most of these.
class SASH_API Metric {
 public:
  virtual ~Metric();

  /// Counts a batch: what the model gave, and what is true. Elements are copied to the host.
  virtual void update(const Tensor& output, const Tensor& target) = 0;
  /// The figure. `ValueError` if no row was counted.
  double compute() const;
  /// Forgets all batches.
  virtual void reset();
  /// Replaces the counts by those of all ranks together. All ranks call it, before `compute`.
  virtual void sum_ranks(const distributed::Group& group);
  /// Whether more is better: the direction of a `Trainer` that monitors it.
  virtual bool higher_is_better() const { return true; }

 protected:
  Metric(const char* name, int64_t counts);
  Metric(const Metric&) = default;
  Metric& operator=(const Metric&) = default;

  virtual double value() const = 0;

  const char* name_;
  std::vector<double> counts_;  // sums over rows
  double rows_ = 0;
  Device device_;  // of the last batch
};

/// Classes that are told from logits [..., C], floating, or from predicted classes, integer of the
/// targets' shape. Targets are int64 [...]; those of `ignore_index` are left out. `ShapeError` and
/// `DTypeError` for others.
class SASH_API ClassMetric : public Metric {
 public:
  void update(const Tensor& output, const Tensor& target) override;

 protected:
  ClassMetric(const char* name, int64_t counts, int64_t ignore_index)
      : Metric(name, counts), ignore_index_(ignore_index) {}
  virtual void count(int64_t predicted, int64_t target) = 0;

 private:
  int64_t ignore_index_;
};

/// The share of rows whose class is right.
class SASH_API Accuracy : public ClassMetric {
 public:
  explicit Accuracy(int64_t ignore_index = -100) : ClassMetric("Accuracy", 1, ignore_index) {}

 protected:
  void count(int64_t predicted, int64_t target) override { counts_[0] += predicted == target; }
  double value() const override { return counts_[0] / rows_; }
};

/// How often each class is taken for each other one. `compute` is the accuracy.
class SASH_API ConfusionMatrix : public ClassMetric {
 public:
  /// `ValueError` unless there is a class. Later, `IndexError` for a class outside [0, classes).
  explicit ConfusionMatrix(int64_t classes, int64_t ignore_index = -100)
      : ConfusionMatrix("ConfusionMatrix", classes, ignore_index) {}

  int64_t classes() const { return classes_; }
  /// Rows of class `target` that were taken for `predicted`.
  int64_t count_of(int64_t target, int64_t predicted) const;
  /// The counts, int64 [classes, classes]: a row for each target, a column for each prediction.
  Tensor matrix() const;
  /// The counts as a table. Labels are the classes' numbers by default; `ValueError` unless there
  /// is one for each class. With `columns` > 0, such as a terminal's, a wider table is several
  /// tables below each other.
  std::string to_string(const std::vector<std::string>& labels = {}, int64_t columns = 0) const;

 protected:
  ConfusionMatrix(const char* name, int64_t classes, int64_t ignore_index);
  void count(int64_t predicted, int64_t target) override;
  double value() const override;

  int64_t classes_;
};

enum class F1Average {
  macro,  ///< the mean over the classes that occur in targets or predictions
  micro,  ///< of all classes' counts together, which is the accuracy
};

/// F1 = 2 tp / (2 tp + fp + fn), with the true positives, false positives and false negatives of a
/// class: the harmonic mean of precision and recall.
class SASH_API F1 : public ConfusionMatrix {
 public:
  explicit F1(int64_t classes, F1Average average = F1Average::macro, int64_t ignore_index = -100)
      : ConfusionMatrix("F1", classes, ignore_index), average_(average) {}

  /// Of one class; 0 for a class that occurs nowhere.
  double of_class(int64_t c) const;

 protected:
  double value() const override;

 private:
  F1Average average_;
};

/// The area under the ROC curve of two classes: how likely a row of class 1 has a higher score than
/// a row of class 0, where equal scores count half. Keeps all scores.
class SASH_API AUC : public Metric {
 public:
  AUC() : Metric("AUC", 0) {}

  /// Scores of any floating dtype and shape, larger for class 1, with targets 0 and 1 of that
  /// shape. `ShapeError`, and `ValueError` for other targets or a NaN. `compute` throws
  /// `ValueError` unless both classes occurred.
  void update(const Tensor& output, const Tensor& target) override;
  void reset() override;
  void sum_ranks(const distributed::Group& group) override;

 protected:
  double value() const override;

 private:
  std::vector<double> scores_, targets_;
};

/// e to the mean of -log p of the target tokens.
class SASH_API Perplexity : public Metric {
 public:
  explicit Perplexity(int64_t ignore_index = -100)
      : Metric("Perplexity", 1), ignore_index_(ignore_index) {}

  /// Logits [..., C] with targets int64 [...]; errors as `cross_entropy`.
  void update(const Tensor& output, const Tensor& target) override;
  /// A mean loss over so many tokens, such as `LanguageModel::loss`, which holds no logits.
  void update_loss(const Tensor& loss, double tokens);
  bool higher_is_better() const override { return false; }

 protected:
  double value() const override;

 private:
  int64_t ignore_index_;
};

/// 1 - sum (target - output)^2 / sum (target - mean target)^2, the share of the variance that a
/// regression explains. `compute` is NaN or -inf if all targets are equal.
class SASH_API R2 : public Metric {
 public:
  R2() : Metric("R2", 3) {}

  /// Of any floating dtype, shapes equal; `ShapeError`.
  void update(const Tensor& output, const Tensor& target) override;
  void sum_ranks(const distributed::Group& group) override;

 protected:
  double value() const override;
};

}  // namespace sash::optim
