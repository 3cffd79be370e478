// Metrics of a whole validation set, against formulas written out.
#include <cmath>

#include <doctest/doctest.h>

#include <sash/nn/layers/linear.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/optim/metrics/metric.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

const TensorOptions kHost{.device = kCPU};

Tensor classes(const std::vector<int64_t>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())}, kHost);
}
Tensor reals(const std::vector<double>& values) {
  return tensor(values, {static_cast<int64_t>(values.size())},
                {.dtype = DType::float64, .device = kCPU});
}

}  // namespace

TEST_CASE("metrics: classes, in batches of different sizes") {
  optim::Accuracy accuracy;
  optim::ConfusionMatrix matrix(3);
  optim::F1 macro(4), micro(4, optim::F1Average::micro);  // class 3 occurs nowhere
  const auto update = [&](const Tensor& predicted, const Tensor& target) {
    for (optim::Metric* m : std::vector<optim::Metric*>{&accuracy, &matrix, &macro, &micro}) {
      m->update(predicted, target);
    }
  };
  update(classes({0, 1, 2, 2, 1}), classes({0, 1, 1, 2, -100}));
  update(classes({0}), classes({2}));
  // Of five rows three are right.
  CHECK(accuracy.compute() == 3.0 / 5);
  CHECK(matrix.compute() == 3.0 / 5);
  CHECK(micro.compute() == 3.0 / 5);
  CHECK(matrix.matrix().to_vector<int64_t>() == std::vector<int64_t>{1, 0, 0, 0, 1, 1, 1, 0, 1});
  CHECK(matrix.count_of(1, 2) == 1);
  // 2 tp / (2 tp + fp + fn)
  CHECK(macro.of_class(0) == doctest::Approx(2.0 / 3));
  CHECK(macro.of_class(1) == doctest::Approx(2.0 / 3));
  CHECK(macro.of_class(2) == doctest::Approx(2.0 / 4));
  CHECK(macro.of_class(3) == 0);
  CHECK(macro.compute() == doctest::Approx((2.0 / 3 + 2.0 / 3 + 2.0 / 4) / 3));
  CHECK(matrix.to_string({"cat", "dog", "mouse"}) ==
        "target \\ predicted  cat  dog  mouse\n"
        "cat                   1    0      0\n"
        "dog                   0    1      1\n"
        "mouse                 1    0      1\n");
  CHECK(matrix.to_string({"\u00e4", "b", "c"})
            .starts_with("target \\ predicted  \u00e4  b  c\n"
                         "\u00e4                   1  0  0\n"));
  const std::string narrow = matrix.to_string({"cat", "dog", "mouse"}, 28);
  CHECK(narrow ==
        "target \\ predicted  cat  dog\n"
        "cat                   1    0\n"
        "dog                   0    1\n"
        "mouse                 1    0\n"
        "\n"
        "target \\ predicted  mouse\n"
        "cat                     0\n"
        "dog                     1\n"
        "mouse                   1\n");
  CHECK(matrix.to_string({}, 1).find("0\n\ntarget \\ predicted  2\n") != std::string::npos);
  CHECK(matrix.to_string({"cat", "dog", "mouse"}, 35) == matrix.to_string({"cat", "dog", "mouse"}));
  accuracy.reset();
  // Logits [2, 2, 3].
  accuracy.update(tensor<float>({1, 2, 0, 5, 1, 1, 0, 0, 3, 9, 8, 7}, {2, 2, 3}, kHost),
                  tensor<int64_t>({1, 0, 2, 1}, {2, 2}, kHost));
  CHECK(accuracy.compute() == 0.75);
}

TEST_CASE("metrics: the area under the curve counts pairs, and ties half") {
  optim::AUC auc;
  const std::vector<double> scores{0.1, 0.4, 0.4, 0.8, 0.4, 0.9, 0.1};
  const std::vector<double> targets{0, 1, 0, 1, 0, 0, 0};
  auc.update(reals({0.1, 0.4, 0.4}), reals({0, 1, 0}));
  auc.update(reals({0.8, 0.4, 0.9, 0.1}).view({2, 2}), classes({1, 0, 0, 0}).view({2, 2}));
  double ordered = 0, pairs = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (targets[i] != 1 || targets[j] != 0) continue;
      ++pairs;
      ordered += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  CHECK(auc.compute() == doctest::Approx(ordered / pairs));
  auc.reset();
  auc.update(reals({1, 2}), classes({0, 1}));
  CHECK(auc.compute() == 1);
}

TEST_CASE("metrics: perplexity is over tokens, R2 over all rows") {
  manual_seed(1);
  const Tensor logits = randn({7, 5}, kHost);
  const Tensor targets = classes({0, 4, -100, 2, 2, 1, -100});
  optim::Perplexity whole, parts, losses;
  whole.update(logits, targets);
  for (const int64_t first : {0, 4}) {
    const int64_t count = first == 0 ? 4 : 3;
    const Tensor part = logits.narrow(0, first, count), goal = targets.narrow(0, first, count);
    parts.update(part, goal);
    losses.update_loss(cross_entropy(part, goal), first == 0 ? 3 : 2);
  }
  CHECK(whole.compute() ==
        doctest::Approx(std::exp(cross_entropy(logits, targets).item<double>())));
  CHECK(parts.compute() == doctest::Approx(whole.compute()));
  CHECK(losses.compute() == doctest::Approx(whole.compute()));
  CHECK(!whole.higher_is_better());

  optim::R2 r2;
  const double far = 1e7;  // where sums of squares would lose the variance
  r2.update(reals({far + 1.5, far + 2}), reals({far + 1, far + 2}));
  r2.update(reals({far + 3.5}), reals({far + 4.5}));
  const double mean = 7.5 / 3;
  double spread = 0;
  for (const double y : {1.0, 2.0, 4.5}) spread += (y - mean) * (y - mean);
  CHECK(r2.compute() == doctest::Approx(1 - (0.25 + 1) / spread).epsilon(1e-9));
  CHECK(r2.higher_is_better());
}

TEST_CASE("metrics: wrong calls") {
  optim::Accuracy accuracy;
  optim::ConfusionMatrix matrix(2);
  optim::AUC auc;
  optim::R2 r2;
  optim::Perplexity perplexity;
  const Tensor one = classes({1}), two = classes({0, 1});
  expect_errors({
      {"ValueError: Accuracy.compute: expected a row to count, by update, got none",
       [&] { accuracy.compute(); }},
      {"ShapeError: Accuracy: expected logits [..., C] or classes [...] of targets [2], got int64 "
       "[1]",
       [&] { accuracy.update(one, two); }},
      {"DTypeError: Accuracy: expected integer targets, got float64",
       [&] { accuracy.update(one, reals({1})); }},
      {"ValueError: ConfusionMatrix: expected at least one class, got 0",
       [] { optim::ConfusionMatrix(0); }},
      {"IndexError: ConfusionMatrix: expected classes in [0, 2), got 2",
       [&] { matrix.update(classes({2}), one); }},
      {"ValueError: ConfusionMatrix: expected a label for each of 2 classes, got 1",
       [&] { matrix.to_string({"a"}); }},
      {"ValueError: AUC: expected targets 0 and 1, got 2",
       [&] { auc.update(reals({1}), classes({2})); }},
      {"ValueError: AUC: expected scores that are numbers, got NaN",
       [&] { auc.update(reals({NAN}), one); }},
      {"ValueError: AUC.compute: expected targets of both classes, got only 1",
       [&] {
         auc.update(reals({1}), one);
         auc.compute();
       }},
      {"ShapeError: R2: expected outputs and targets of one shape, got [1] and [2]",
       [&] {
         r2.update(reals({1}), reals({1, 2}));
       }},
      {"ValueError: Perplexity: expected a number of tokens, got -1",
       [&] { perplexity.update_loss(reals({1}).sum(), -1); }},
  });
}
