// Losses made of plain ops.
#include <sash/ops/loss/binary_cross_entropy.h>
#include <sash/ops/loss/huber_loss.h>
#include <sash/ops/loss/kl_div.h>
#include <sash/ops/loss/l1_loss.h>
#include <sash/ops/loss/nll_loss.h>
#include <sash/ops/loss/smooth_l1_loss.h>

#include "../cases.h"

namespace sash::testing {
namespace {

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

std::string name_of(Reduction reduction) {
  constexpr const char* names[] = {"none, ", "mean, ", "sum, "};
  return names[static_cast<int>(reduction)];
}

Array reduced_of(const Array& terms, Reduction reduction) {
  if (reduction == Reduction::none) return terms;
  double total = 0;
  for (const double value : terms.values) total += value;
  const bool mean = reduction == Reduction::mean;
  return Array({}, mean ? total / static_cast<double>(terms.values.size()) : total);
}

using Run = std::function<Tensor(const Tensors&, Reduction)>;
using Terms = std::function<double(double, double)>;

/// A loss of two tensors of one shape, in every layout and reduction.
void add_pairwise(OpTable& table, const std::string& op, const std::string& variant, InputSpec a,
                  InputSpec b, const Run& run, const Terms& terms, double scale = 0) {
  const auto add = [&](const Shape& shape, Layout a_layout, Layout b_layout, Reduction reduction) {
    a.shape = b.shape = shape;
    a.layout = a_layout;
    b.layout = b_layout;
    table.push_back({
        .op = op,
        .variant = variant + name_of(reduction) + describe(a) + " and " + describe(b),
        .inputs = {a, b},
        .run = [=](const Tensors& t) { return run(t, reduction); },
        .reference = [=](const Arrays& t) { return reduced_of(zip(t[0], t[1], terms), reduction); },
        .tolerance32 = 3e-5,
        .half_rounds = 5,
        .half_gradient_rounds = 6,
        .half_gradient_scale = scale,
        .differentiable = count(shape) > 0,  // the mean of nothing is NaN
    });
  };
  for (const Reduction reduction : kReductions) {
    add({3, 5}, contiguous, contiguous, reduction);
    add({4, 3}, transposed, sliced, reduction);
    add({}, contiguous, contiguous, reduction);
    add({0, 2}, contiguous, contiguous, reduction);
  }
  add({3, 4}, padded, expanded, Reduction::mean);
  add({65, 64}, contiguous, contiguous, Reduction::mean);
}

void add_distances(OpTable& table) {
  // Whole parts apart, so that no difference is near a kink.
  const InputSpec a{.shape = {}, .low = 1, .high = 2}, b{.shape = {}, .low = -2, .high = 0.9};
  add_pairwise(
      table, "l1_loss", "", a, b,
      [](const Tensors& t, Reduction r) { return l1_loss(t[0], t[1], r); },
      [](double x, double y) { return std::abs(x - y); });
  for (const double delta : {0.5, 8.0}) {
    add_pairwise(
        table, "huber_loss", "delta " + std::to_string(delta) + ", ",
        {.shape = {}, .low = -1, .high = -0.6}, {.shape = {}, .low = 0.2, .high = 3},
        [=](const Tensors& t, Reduction r) {
          return huber_loss(t[0], t[1], {.delta = delta, .reduction = r});
        },
        [=](double x, double y) {
          const double d = std::abs(x - y);
          return d <= delta ? d * d / 2 : delta * (d - delta / 2);
        },
        8);
  }
  for (const double beta : {0.5, 8.0}) {
    add_pairwise(
        table, "smooth_l1_loss", "beta " + std::to_string(beta) + ", ",
        {.shape = {}, .low = -1, .high = -0.6}, {.shape = {}, .low = 0.2, .high = 3},
        [=](const Tensors& t, Reduction r) {
          return smooth_l1_loss(t[0], t[1], {.beta = beta, .reduction = r});
        },
        [=](double x, double y) {
          const double d = std::abs(x - y);
          return d <= beta ? d * d / 2 / beta : d - beta / 2;
        },
        8);
  }
}

void add_distributions(OpTable& table) {
  const InputSpec target{.shape = {}, .low = 0, .high = 1};
  add_pairwise(
      table, "binary_cross_entropy_with_logits", "", {.shape = {}, .low = -4, .high = 4}, target,
      [](const Tensors& t, Reduction r) {
        return binary_cross_entropy_with_logits(t[0], t[1], {.reduction = r});
      },
      [](double x, double z) {
        const double p = 1 / (1 + std::exp(-x));
        return -z * std::log(p) - (1 - z) * std::log(1 - p);
      },
      4);
  const InputSpec probabilities{.shape = {}, .low = 0.05, .high = 1},
      logarithms{.shape = {}, .low = -3, .high = 0};
  add_pairwise(
      table, "kl_div", "", logarithms, probabilities,
      [](const Tensors& t, Reduction r) { return kl_div(t[0], t[1], {.reduction = r}); },
      [](double x, double t) { return t * (std::log(t) - x); }, 4);
  add_pairwise(
      table, "kl_div", "log target, ", logarithms, logarithms,
      [](const Tensors& t, Reduction r) {
        return kl_div(t[0], t[1], {.reduction = r, .log_target = true});
      },
      [](double x, double t) { return std::exp(t) * (t - x); }, 4);
}

void add_positive_weight(OpTable& table, const Shape& weight) {
  table.push_back({
      .op = "binary_cross_entropy_with_logits",
      .variant = "pos_weight " + to_string(weight),
      .inputs = {{.shape = {4, 3}, .low = -4, .high = 4},
                 {.shape = {4, 3}, .low = 0, .high = 1},
                 {.shape = weight, .low = 0.5, .high = 3, .requires_grad = false}},
      .run =
          [](const Tensors& t) {
            return binary_cross_entropy_with_logits(t[0], t[1], {.pos_weight = t[2]});
          },
      .reference =
          [](const Arrays& t) {
            return reduced_of(generate(t[0].shape,
                                       [&](const Index& at) {
                                         const double x = t[0][at], z = t[1][at];
                                         const double p = 1 / (1 + std::exp(-x));
                                         return -t[2].broadcast(at) * z * std::log(p) -
                                                (1 - z) * std::log(1 - p);
                                       }),
                              Reduction::mean);
          },
      .half_rounds = 6,
      .half_gradient_rounds = 8,
      .half_gradient_scale = 8,
  });
}

Array nll_of(const Arrays& t, const NLLLossOptions& options) {
  const int axis = positive(options.class_axis, t[0].shape.rank());
  double total = 0, counted = 0;
  const Array losses = generate(t[1].shape, [&](const Index& at) {
    const auto target = static_cast<int64_t>(t[1][at]);
    if (target == options.ignore_index) return 0.0;
    const double weight = t.size() > 2 ? t[2][{target}] : 1.0;
    const double loss = -weight * t[0][with(at, axis, target)];
    total += loss;
    counted += weight;
    return loss;
  });
  if (options.reduction == Reduction::none) return losses;
  return Array({}, options.reduction == Reduction::sum ? total : total / counted);
}

void add_nll(OpTable& table) {
  const auto add = [&](const std::string& variant, const InputSpec& logp, const InputSpec& targets,
                       const NLLLossOptions& options, bool weighted) {
    std::vector<InputSpec> inputs{logp, targets};
    const int64_t classes = logp.shape[positive(options.class_axis, logp.shape.rank())];
    if (weighted) {
      inputs.push_back({.shape = {classes}, .low = 0.25, .high = 2, .requires_grad = false});
    }
    table.push_back({
        .op = "nll_loss",
        .variant = variant + (weighted ? "weighted, " : "") + describe(logp),
        .inputs = inputs,
        .run =
            [=](const Tensors& t) {
              NLLLossOptions with = options;
              if (weighted) with.weight = t[2];
              return nll_loss(t[0], t[1], with);
            },
        .reference = [=](const Arrays& t) { return nll_of(t, options); },
        .half_gradient_rounds = 2,
    });
  };
  InputSpec some_ignored = indices({6}, 4);
  some_ignored.elements = {2, -100, 0, 3, -100, 1};
  for (const bool weighted : {false, true}) {
    for (const Reduction reduction : kReductions) {
      add(name_of(reduction), {{6, 4}}, some_ignored, {.reduction = reduction}, weighted);
    }
    add("ignoring 1, ", {{5, 3}, transposed}, indices({5}, 3, sliced), {.ignore_index = 1},
        weighted);
    add("axis 1, ", {{2, 4, 3}, heads}, indices({2, 3}, 4), {.class_axis = 1}, weighted);
    add("", {{65, 63}}, indices({65}, 63), {}, weighted);
    add("sum, ", {{0, 3}}, indices({0}, 3), {.reduction = Reduction::sum}, weighted);
  }
}

}  // namespace

void add_losses(OpTable& table) {
  add_distances(table);
  add_distributions(table);
  add_positive_weight(table, {3});
  add_positive_weight(table, {4, 1});
  add_nll(table);
}

}  // namespace sash::testing
