#include "metric.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "../../ops/loss/cross_entropy.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"

namespace sash::optim {
namespace {

void check_same_shape(const char* name, const Tensor& output, const Tensor& target) {
  if (output.shape() == target.shape()) return;
  throw ShapeError(name, "outputs and targets of one shape",
                   to_string(output.shape()) + " and " + to_string(target.shape()));
}

std::vector<double> numbers(const Tensor& x) {
  return x.detach().to(DType::float64).to_vector<double>();
}

}  // namespace

Metric::Metric(const char* name, int64_t counts)
    : name_(name), counts_(static_cast<size_t>(counts)), device_(default_device()) {}

Metric::~Metric() = default;

double Metric::compute() const {
  if (rows_ > 0) return value();
  throw ValueError(std::string(name_) + ".compute", "a row to count, by update", "none");
}

void Metric::reset() {
  std::fill(counts_.begin(), counts_.end(), 0.0);
  rows_ = 0;
}

void Metric::sum_ranks(const distributed::Group& group) {
  std::vector<double> all = counts_;
  all.push_back(rows_);
  const Tensor sums =
      tensor(all, {static_cast<int64_t>(all.size())}, {.dtype = DType::float64, .device = device_});
  group.all_reduce(sums);
  counts_ = sums.to_vector<double>();
  rows_ = counts_.back();
  counts_.pop_back();
}

void ClassMetric::update(const Tensor& output, const Tensor& target) {
  if (is_floating(target.dtype())) {
    throw DTypeError(name_, "integer targets", sash::name(target.dtype()));
  }
  const NoGradGuard no_grad;
  const bool are_logits = is_floating(output.dtype());
  const Tensor predicted = are_logits && output.rank() > 0 ? output.argmax(-1) : output;
  if (predicted.shape() != target.shape()) {
    throw ShapeError(name_,
                     "logits [..., C] or classes [...] of targets " + to_string(target.shape()),
                     std::string(sash::name(output.dtype())) + " " + to_string(output.shape()));
  }
  const auto classes = predicted.to(DType::int64).to_vector<int64_t>();
  const auto targets = target.to(DType::int64).to_vector<int64_t>();
  device_ = output.device();
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == ignore_index_) continue;
    count(classes[i], targets[i]);
    ++rows_;
  }
}

ConfusionMatrix::ConfusionMatrix(const char* name, int64_t classes, int64_t ignore_index)
    : ClassMetric(name, classes > 0 ? classes * classes : 0, ignore_index), classes_(classes) {
  if (classes < 1) throw ValueError(name, "at least one class", std::to_string(classes));
}

void ConfusionMatrix::count(int64_t predicted, int64_t target) {
  for (const int64_t c : {predicted, target}) {
    if (c >= 0 && c < classes_) continue;
    throw IndexError(name_, "classes in [0, " + std::to_string(classes_) + ")", std::to_string(c));
  }
  ++counts_[static_cast<size_t>(target * classes_ + predicted)];
}

double ConfusionMatrix::value() const {
  double right = 0;
  for (int64_t c = 0; c < classes_; ++c) right += static_cast<double>(count_of(c, c));
  return right / rows_;
}

int64_t ConfusionMatrix::count_of(int64_t target, int64_t predicted) const {
  return static_cast<int64_t>(counts_.at(static_cast<size_t>(target * classes_ + predicted)));
}

Tensor ConfusionMatrix::matrix() const {
  return tensor(std::vector<int64_t>(counts_.begin(), counts_.end()), {classes_, classes_},
                {.device = kCPU});
}

std::string ConfusionMatrix::to_string(const std::vector<std::string>& labels,
                                       int64_t columns) const {
  const auto most = static_cast<size_t>(std::max<int64_t>(columns, 0));
  if (!labels.empty() && static_cast<int64_t>(labels.size()) != classes_) {
    throw ValueError(name_, "a label for each of " + std::to_string(classes_) + " classes",
                     std::to_string(labels.size()));
  }
  const auto label = [&](int64_t c) {
    return labels.empty() ? std::to_string(c) : labels[static_cast<size_t>(c)];
  };
  std::vector<std::vector<std::string>> rows{{"target \\ predicted"}};
  for (int64_t target = 0; target < classes_; ++target) {
    rows[0].push_back(label(target));
    rows.push_back({label(target)});
    for (int64_t predicted = 0; predicted < classes_; ++predicted) {
      rows.back().push_back(std::to_string(count_of(target, predicted)));
    }
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], utf8_length(row[i]));
  }
  std::string text;
  for (size_t first = 1, end = 1; first < widths.size(); first = end) {
    size_t wide = widths[0] + 2 + widths[end++];
    while (end < widths.size() && (most == 0 || wide + 2 + widths[end] <= most)) {
      wide += 2 + widths[end++];
    }
    text += first > 1 ? "\n" : "";
    for (const auto& row : rows) {
      text += row[0] + std::string(widths[0] - utf8_length(row[0]), ' ');
      for (size_t i = first; i < end; ++i) {
        text += std::string(2 + widths[i] - utf8_length(row[i]), ' ') + row[i];
      }
      text += '\n';
    }
  }
  return text;
}

double F1::of_class(int64_t c) const {
  double found = 0, real = 0;
  for (int64_t other = 0; other < classes_; ++other) {
    found += static_cast<double>(count_of(other, c));
    real += static_cast<double>(count_of(c, other));
  }
  return found + real > 0 ? 2 * static_cast<double>(count_of(c, c)) / (found + real) : 0;
}

double F1::value() const {
  if (average_ == F1Average::micro) return ConfusionMatrix::value();
  double sum = 0, present = 0;
  for (int64_t c = 0; c < classes_; ++c) {
    double rows = 0;
    for (int64_t o = 0; o < classes_; ++o)
      rows += static_cast<double>(count_of(c, o) + count_of(o, c));
    sum += of_class(c);
    present += rows > 0;
  }
  return sum / present;
}

void AUC::update(const Tensor& output, const Tensor& target) {
  check_same_shape(name_, output, target);
  const std::vector<double> scores = numbers(output), targets = numbers(target);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) throw ValueError(name_, "scores that are numbers", "NaN");
    if (targets[i] == 0 || targets[i] == 1) continue;
    throw ValueError(name_, "targets 0 and 1", to_text(targets[i]));
  }
  device_ = output.device();
  scores_.insert(scores_.end(), scores.begin(), scores.end());
  targets_.insert(targets_.end(), targets.begin(), targets.end());
  rows_ += static_cast<double>(scores.size());
}

void AUC::reset() {
  Metric::reset();
  scores_.clear();
  targets_.clear();
}

// Ranks have different numbers of scores, so that they are padded with targets of -1.
void AUC::sum_ranks(const distributed::Group& group) {
  const auto most = static_cast<size_t>(group.all_reduce(rows_, distributed::ReduceOp::max));
  std::vector<double> padded = scores_;
  padded.resize(most);
  padded.insert(padded.end(), targets_.begin(), targets_.end());
  padded.resize(2 * most, -1);
  const auto rows = static_cast<int64_t>(most);
  const std::vector<double> all =
      group.all_gather(tensor(padded, {1, 2, rows}, {.dtype = DType::float64, .device = device_}))
          .to_vector<double>();
  reset();
  for (size_t first = 0; first < all.size(); first += 2 * most) {
    for (size_t i = first; i < first + most; ++i) {
      if (all[i + most] < 0) continue;
      scores_.push_back(all[i]);
      targets_.push_back(all[i + most]);
    }
  }
  rows_ = static_cast<double>(scores_.size());
}

// The pairs of a 1 and a 0 that are in order (Mann and Whitney), from the lowest score on.
double AUC::value() const {
  std::vector<size_t> order(scores_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return scores_[a] < scores_[b]; });
  double ones = 0, zeros = 0, pairs = 0;
  for (size_t i = 0; i < order.size();) {
    double ones_here = 0, zeros_here = 0;
    const double score = scores_[order[i]];
    for (; i < order.size() && scores_[order[i]] == score; ++i) {
      (targets_[order[i]] == 1 ? ones_here : zeros_here) += 1;
    }
    pairs += ones_here * (zeros + zeros_here / 2);
    ones += ones_here;
    zeros += zeros_here;
  }
  if (ones > 0 && zeros > 0) return pairs / (ones * zeros);
  throw ValueError("AUC.compute", "targets of both classes", ones > 0 ? "only 1" : "only 0");
}

void Perplexity::update(const Tensor& output, const Tensor& target) {
  const NoGradGuard no_grad;
  const Tensor sum =
      cross_entropy(output, target, {.ignore_index = ignore_index_, .reduction = Reduction::sum});
  const auto targets = target.to_vector<int64_t>();
  device_ = output.device();
  counts_[0] += sum.item<double>();
  rows_ += static_cast<double>(targets.size()) -
           static_cast<double>(std::count(targets.begin(), targets.end(), ignore_index_));
}

void Perplexity::update_loss(const Tensor& loss, double tokens) {
  if (!(tokens >= 0)) throw ValueError(name_, "a number of tokens", to_text(tokens));
  if (tokens == 0) return;
  device_ = loss.device();
  counts_[0] += loss.item<double>() * tokens;
  rows_ += tokens;
}

double Perplexity::value() const { return std::exp(counts_[0] / rows_); }

// Counts: the squared errors, the mean of the targets, and their squared distances from it.
void R2::update(const Tensor& output, const Tensor& target) {
  check_same_shape(name_, output, target);
  const std::vector<double> outputs = numbers(output), targets = numbers(target);
  device_ = output.device();
  for (size_t i = 0; i < targets.size(); ++i) {
    const double before = targets[i] - counts_[1];
    counts_[0] += (targets[i] - outputs[i]) * (targets[i] - outputs[i]);
    counts_[1] += before / ++rows_;
    counts_[2] += before * (targets[i] - counts_[1]);
  }
}

void R2::sum_ranks(const distributed::Group& group) {
  const double rows = rows_, mean = counts_[1];
  counts_[1] *= rows;
  Metric::sum_ranks(group);
  counts_[1] /= rows_;
  const double distance = mean - counts_[1];
  counts_[2] += group.all_reduce(rows > 0 ? rows * distance * distance : 0);
}

double R2::value() const { return 1 - counts_[0] / counts_[2]; }

}  // namespace sash::optim
