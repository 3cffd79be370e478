#include "cross_entropy.h"

#include "../index/index_checks.h"
#include "../kernels/loss.h"
#include "../norm/softmax.h"
#include "../op.h"
#include "class_targets.h"

namespace sash {

namespace kernels {
constinit decltype(cross_entropy_forward) cross_entropy_forward{"cross_entropy_forward"};
constinit decltype(cross_entropy_backward) cross_entropy_backward{"cross_entropy_backward"};
}  // namespace kernels

namespace {

constexpr const char* kEntropy = "cross_entropy";

/// The class weights as kernels and composite read them.
Tensor weight_for(const Tensor& logits, const CrossEntropyOptions& options) {
  if (!options.weight.defined()) return {};
  return options.weight.detach().to(*row_statistics(logits).dtype).contiguous();
}

// The logits' gradient from what the forward pass kept.
Tensor fused_backward(const Tensor& logits, const Tensor& targets, const Tensor& weight,
                      const Tensor& stats, const Tensor& totals, const Tensor& grad,
                      const kernels::CrossEntropyRule& rule) {
  const int64_t rows = targets.numel(), classes = logits.shape().back();
  const Tensor g = grad.contiguous();
  const Tensor dx = empty_like(logits);
  run_kernel(kernels::cross_entropy_backward, matrix_view(logits, rows, classes),
             vector_view(targets), vector_view(weight), matrix_view(stats, rows, 2), vector_view(g),
             vector_view(totals), matrix_view(dx, rows, classes), rule);
  return dx;
}

/// Of targets that are probabilities, from plain ops.
Tensor of_probabilities(const Tensor& logits, const Tensor& targets,
                        const CrossEntropyOptions& options) {
  check_same_device(kEntropy, logits, targets);
  const int axis = check_classes(kEntropy, logits, options.weight, options.class_axis);
  if (targets.shape() != logits.shape()) {
    throw ShapeError(kEntropy,
                     "probabilities " + to_string(logits.shape()) + ", or targets of int64 " +
                         to_string(without_axis(logits, axis)),
                     to_string(targets.shape()) + " of " + std::string(name(targets.dtype())));
  }
  if (options.ignore_index != CrossEntropyOptions().ignore_index) {
    throw ValueError(kEntropy, "no ignore_index for targets that are probabilities",
                     std::to_string(options.ignore_index));
  }
  const double s = options.label_smoothing;
  const DType working = *row_statistics(logits).dtype;
  const Tensor x = classes_last(logits, axis).to(working);
  const Tensor weight = weight_for(logits, options);
  Tensor p = classes_last(targets, axis).to(working);
  if (s > 0) p = p * (1 - s) + s / static_cast<double>(x.size(-1));
  const Tensor logp = log_softmax(x);
  const Tensor losses = -sum(p * (weight.defined() ? logp * weight : logp), {-1});
  const auto rows = static_cast<double>(losses.numel());
  return reduced(losses, full({}, rows, losses.options()), options.reduction).to(logits.dtype());
}

}  // namespace

Tensor composite::cross_entropy(const Tensor& logits, const Tensor& targets,
                                const CrossEntropyOptions& options) {
  const double s = options.label_smoothing;
  const int axis = normalize_axis(options.class_axis, logits.rank(), kEntropy);
  const Tensor x = classes_last(logits, axis).to(*row_statistics(logits).dtype);
  const Tensor weight = weight_for(logits, options);
  const Tensor logp = composite::log_softmax(x);
  const auto [terms, total] = class_terms(logp, targets, weight, options.ignore_index);
  Tensor losses = terms;
  if (s > 0) {
    const Tensor smooth = sum(weight.defined() ? logp * weight : logp, {-1});
    const Tensor share = smooth * (s / static_cast<double>(x.size(-1)));
    losses = terms * (1 - s) - masked_fill(share, eq(targets, options.ignore_index), 0);
  }
  return reduced(losses, total, options.reduction).to(logits.dtype());
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& given) {
  if (Autocast cast(kEntropy); cast) return cross_entropy(cast(logits), targets, given);
  check_probability(kEntropy, "label smoothing", given.label_smoothing);
  check_floating(kEntropy, logits);
  if (targets.defined() && is_floating(targets.dtype())) {
    return of_probabilities(logits, targets, given);
  }
  const int axis = check_class_targets(kEntropy, logits, targets, given.weight, given.class_axis);
  const Tensor x = classes_last(logits, axis).contiguous(), t = targets.contiguous();
  CrossEntropyOptions options = given;
  options.class_axis = -1;
  options.weight = weight_for(logits, given);
  const int64_t rows = t.numel(), classes = x.shape().back();
  check_index_values(kEntropy, t, classes, options.ignore_index);
  if (!use_fused(kernels::cross_entropy_forward, x.device())) {
    return composite::cross_entropy(x, t, options);
  }
  const kernels::CrossEntropyRule rule{options.ignore_index, options.label_smoothing,
                                       options.reduction == Reduction::mean};
  const Tensor losses = empty(t.shape(), row_statistics(x));
  const Tensor stats = empty({rows, 2}, row_statistics(x));
  const Tensor totals = empty({2}, row_statistics(x));
  run_kernel(kernels::cross_entropy_forward, matrix_view(x, rows, classes), vector_view(t),
             vector_view(options.weight), vector_view(losses), matrix_view(stats, rows, 2),
             vector_view(totals), rule);
  const Tensor y =
      unrecorded([&] { return reduced(losses, totals[0], options.reduction).to(x.dtype()); });
  const Saved weight = save(options.weight);
  options.weight = {};
  return record(
      kEntropy, {x}, y,
      [x = save(x), t = save(t), weight, stats = save(stats), totals = save(totals), rule, options](
          Backward& pass, const Tensor& g) {
        const Tensor in = pass(x), classes_of = pass(t), w = pass(weight);
        if (!pass.create_graph() && use_fused(kernels::cross_entropy_backward, g.device())) {
          return Gradients{fused_backward(in, classes_of, w, pass(stats), pass(totals), g, rule)};
        }
        CrossEntropyOptions same = options;
        same.weight = w;
        return gradients_of_composite(pass, g, composite::cross_entropy, std::array{in}, classes_of,
                                      same);
      });
}

}  // namespace sash
