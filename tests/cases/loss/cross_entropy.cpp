#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/loss/linear_cross_entropy.h>

#include "../cases.h"

namespace sash::testing {
namespace {

Array cross_entropy_of(const Arrays& t, const CrossEntropyOptions& options) {
  const Array &logits = t[0], &targets = t[1];
  const auto weight = [&](int64_t c) { return t.size() > 2 ? t[2][{c}] : 1.0; };
  const int axis = positive(options.class_axis, logits.shape.rank());
  const int64_t classes = logits.shape[axis];
  double total = 0, counted = 0;
  const Array losses = generate(targets.shape, [&](const Index& index) {
    const auto target = static_cast<int64_t>(targets[index]);
    if (target == options.ignore_index) return 0.0;
    const std::vector<double> row = line(logits, with(index, axis, 0), axis);
    const double scale = log_sum_exp(row), s = options.label_smoothing;
    double loss = (1 - s) * weight(target) * (scale - row.at(static_cast<size_t>(target)));
    for (int64_t c = 0; c < classes; ++c) {
      const double share = s / static_cast<double>(classes) * weight(c);
      loss += share * (scale - row[static_cast<size_t>(c)]);
    }
    total += loss;
    counted += weight(target);
    return loss;
  });
  if (options.reduction == Reduction::none) return losses;
  return Array({}, options.reduction == Reduction::sum ? total : total / counted);
}

using Function = Tensor (*)(const Tensor&, const Tensor&, const CrossEntropyOptions&);

void add_case(OpTable& table, const std::string& kind, Function f, const std::string& option,
              const InputSpec& logits, const InputSpec& targets, const CrossEntropyOptions& options,
              bool weighted = false) {
  std::vector<InputSpec> inputs{logits, targets};
  const int64_t classes = logits.shape[positive(options.class_axis, logits.shape.rank())];
  if (weighted) {
    inputs.push_back({.shape = {classes}, .low = 0.25, .high = 2, .requires_grad = false});
  }
  table.push_back({
      .op = "cross_entropy",
      .variant = kind + option + (weighted ? "weighted, " : "") + describe(logits) + " with " +
                 describe(targets),
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            CrossEntropyOptions with = options;
            if (weighted) with.weight = t[2];
            return f(t[0], t[1], with);
          },
      .reference = [=](const Arrays& t) { return cross_entropy_of(t, options); },
  });
}

void add_cases(OpTable& table, const std::string& kind, Function f) {
  const auto add = [&](const std::string& option, const InputSpec& logits, const InputSpec& targets,
                       const CrossEntropyOptions& options) {
    add_case(table, kind, f, option, logits, targets, options);
  };
  const auto add_weighted = [&](const std::string& option, const InputSpec& scores,
                                const InputSpec& targets, const CrossEntropyOptions& options) {
    add_case(table, kind, f, option, scores, targets, options, true);
  };
  const InputSpec logits{{6, 4}};
  InputSpec some_ignored = indices({6}, 4);
  some_ignored.elements = {2, -100, 0, 3, -100, 1};
  InputSpec own_index = indices({6}, 4);
  own_index.elements = {2, 1, 0, 3, 1, 1};
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    const std::string name = reduction == Reduction::none   ? "none, "
                             : reduction == Reduction::mean ? "mean, "
                                                            : "sum, ";
    add(name, logits, indices({6}, 4), {.reduction = reduction});
    add(name + "some ignored, ", logits, some_ignored, {.reduction = reduction});
    add(name + "smoothed, some ignored, ", logits, some_ignored,
        {.label_smoothing = 0.1, .reduction = reduction});
    add_weighted(name, logits, some_ignored, {.reduction = reduction});
    add_weighted(name + "smoothed, ", logits, some_ignored,
                 {.label_smoothing = 0.3, .reduction = reduction});
  }
  add_weighted("smoothed, ", {{65, 63}}, indices({65}, 63), {.label_smoothing = 0.2});
  add_weighted("", {{3, 1040}}, indices({3}, 1040), {});
  add_weighted("axis 1, smoothed, ", {{2, 4, 3}}, indices({2, 3}, 4),
               {.label_smoothing = 0.1, .class_axis = 1});
  add("ignoring 1, ", logits, own_index, {.ignore_index = 1});
  add("", {{2, 3, 4}}, indices({2, 3}, 4), {});
  add("", {{2, 3, 4}, heads}, indices({2, 3}, 4, transposed), {});
  add("axis 1, ", {{2, 4, 3}}, indices({2, 3}, 4), {.class_axis = 1});
  add("axis 1, ", {{2, 4, 2, 3}}, indices({2, 2, 3}, 4), {.class_axis = 1});
  add("axis 1 of a square, ", {{2, 3, 3}}, indices({2, 3}, 3),
      {.label_smoothing = 0.1, .reduction = Reduction::none, .class_axis = -2});
  add("axis 0, ", {{4, 6}}, some_ignored, {.class_axis = 0});
  add("", {{5, 3}, transposed}, indices({5}, 3, sliced), {});
  add("", {{5, 3}, expanded}, indices({5}, 3), {});
  add("", {{65, 63}}, indices({65}, 63), {.label_smoothing = 0.2});
  add("", {{3, 130}}, indices({3}, 130), {});
  add("large, ", {.shape = {3, 65}, .low = -80, .high = 80}, indices({3}, 65), {});
  add("sum, ", {{0, 3}}, indices({0}, 3), {.reduction = Reduction::sum});
}

Array of_probabilities(const Arrays& t, const CrossEntropyOptions& options) {
  const int axis = positive(options.class_axis, t[0].shape.rank());
  const auto classes = t[0].shape[axis];
  double total = 0;
  const Array losses = generate(without(t[0].shape, axis), [&](const Index& index) {
    const Index at = with(index, axis, 0);
    const std::vector<double> row = line(t[0], at, axis), p = line(t[1], at, axis);
    const double scale = log_sum_exp(row), s = options.label_smoothing;
    double loss = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      const double weight = t.size() > 2 ? t[2].values[c] : 1;
      loss += weight * ((1 - s) * p[c] + s / static_cast<double>(classes)) * (scale - row[c]);
    }
    total += loss;
    return loss;
  });
  if (options.reduction == Reduction::none) return losses;
  const auto rows = static_cast<double>(losses.values.size());
  return Array({}, options.reduction == Reduction::sum ? total : total / rows);
}

void add_probabilities(OpTable& table, const InputSpec& logits, const CrossEntropyOptions& options,
                       bool weighted) {
  InputSpec targets = logits;
  targets.low = 0, targets.high = 1;
  std::vector<InputSpec> inputs{logits, targets};
  const int64_t classes = logits.shape[positive(options.class_axis, logits.shape.rank())];
  if (weighted) {
    inputs.push_back({.shape = {classes}, .low = 0.25, .high = 2, .requires_grad = false});
  }
  table.push_back({
      .op = "cross_entropy",
      .variant = std::string("probabilities, ") + (weighted ? "weighted, " : "") +
                 (options.label_smoothing > 0 ? "smoothed, " : "") +
                 (options.reduction == Reduction::none ? "none, " : "") + describe(logits),
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            CrossEntropyOptions with = options;
            if (weighted) with.weight = t[2];
            return cross_entropy(t[0], t[1], with);
          },
      .reference = [=](const Arrays& t) { return of_probabilities(t, options); },
      .half_gradient_rounds = 2,
  });
}

void add_all_probabilities(OpTable& table) {
  for (const bool weighted : {false, true}) {
    add_probabilities(table, {{6, 4}}, {}, weighted);
    add_probabilities(table, {{5, 3}, transposed},
                      {.label_smoothing = 0.2, .reduction = Reduction::none}, weighted);
    add_probabilities(table, {{2, 4, 3}}, {.label_smoothing = 0.1, .class_axis = 1}, weighted);
    add_probabilities(table, {{65, 63}}, {.reduction = Reduction::sum}, weighted);
  }
}

// inputs: x, weight, targets; the loss in the dtype of x, also of halves.
void add_linear_case(OpTable& table, const InputSpec& x, const InputSpec& weight,
                     const InputSpec& targets, const LinearCrossEntropyOptions& options) {
  const auto reference = [=](const Arrays& t) -> Array {
    const CrossEntropyOptions plain{.ignore_index = options.ignore_index,
                                    .label_smoothing = options.label_smoothing,
                                    .reduction = options.reduction};
    return cross_entropy_of({matmul(t[0], transpose(t[1], 0, 1)), t[2]}, plain);
  };
  for (const bool fused : {true, false}) {
    const auto f = fused ? linear_cross_entropy : composite::linear_cross_entropy;
    table.push_back({
        .op = "linear_cross_entropy",
        .variant = std::string(fused ? "" : "composite, ") +
                   (options.reduction == Reduction::sum ? "sum, " : "mean, ") + "chunk " +
                   std::to_string(options.chunk) +
                   (options.label_smoothing > 0 ? ", smoothed, " : ", ") + describe(x) + " and " +
                   describe(weight) + " with " + describe(targets),
        .inputs = {x, weight, targets},
        .run = [=](const Tensors& t) { return f(t[0], t[1], t[2], options).to(t[0].dtype()); },
        .reference = reference,
        .half_rounds = 8,  // of the logits
        .half_gradient_rounds = 16,
        .half_gradient_scale = 4,
    });
  }
}

void add_linear_cases(OpTable& table) {
  InputSpec some_ignored = indices({6}, 5);
  some_ignored.elements = {2, -100, 0, 4, -100, 1};
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    for (const int64_t chunk : {0, 1, 4}) {
      add_linear_case(table, {{6, 3}}, {{5, 3}}, some_ignored,
                      {.reduction = reduction, .chunk = chunk});
    }
  }
  add_linear_case(table, {{6, 3}}, {{5, 3}}, some_ignored, {.label_smoothing = 0.1, .chunk = 4});
  add_linear_case(table, {{2, 3, 4}, heads}, {{7, 4}, transposed}, indices({2, 3}, 7, transposed),
                  {.chunk = 5});
  add_linear_case(table, {{9, 4}, sliced}, {{33, 4}, padded}, indices({9}, 33), {.chunk = 4});
  add_linear_case(table, {{40, 16}}, {{64, 16}}, indices({40}, 64), {.chunk = 16});
  for (const int64_t classes : {264, 1030, 1040}) {
    add_linear_case(table, {{3, 4}}, {{classes, 4}}, indices({3}, classes), {});
  }
  add_linear_case(table, {{3, 4}}, {{1040, 4}}, indices({3}, 1040), {.label_smoothing = 0.1});
  add_linear_case(table, {{0, 3}}, {{5, 3}}, indices({0}, 5), {.reduction = Reduction::sum});
}

}  // namespace

void add_cross_entropy(OpTable& table) {
  add_linear_cases(table);
  add_all_probabilities(table);
  add_cases(table, "", cross_entropy);
  add_cases(table, "composite, ", composite::cross_entropy);
}

}  // namespace sash::testing
