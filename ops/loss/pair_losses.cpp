#include <cmath>
#include <limits>

#include "../kernels/loss.h"
#include "../op.h"
#include "binary_cross_entropy.h"
#include "huber_loss.h"
#include "kl_div.h"
#include "l1_loss.h"
#include "mse_loss.h"
#include "smooth_l1_loss.h"

/// Losses of pairs of elements: terms of two tensors of one shape, then their mean or sum.
namespace sash {

namespace kernels {
constinit decltype(mse_loss_forward) mse_loss_forward{"mse_loss_forward"};
constinit decltype(mse_loss_backward) mse_loss_backward{"mse_loss_backward"};
}  // namespace kernels

namespace {

void check_pair(const char* op, const Tensor& a, const Tensor& b) {
  check_floating_pair(op, a, b);
  check_same_shape(op, a, b);
}

/// t ln t, with the value and all derivatives 0 where t is 0.
Tensor times_log(const Tensor& t) {
  const Tensor none = eq(t, 0);
  return masked_fill(t, none, 0) * log(masked_fill(t, none, 1));
}

constexpr double kImpossible = -std::numeric_limits<double>::infinity();  // the logarithm of 0

/// t x, 0 where t is 0 and x the logarithm of 0 too.
Tensor times_logarithm(const Tensor& t, const Tensor& x) {
  return t * masked_fill(x, logical_and(eq(t, 0), eq(x, kImpossible)), 0);
}

/// exp(t) (t - x), 0 where t is the logarithm of 0.
Tensor of_logarithms(const Tensor& t, const Tensor& x) {
  return exp(t) * masked_fill(t - x, eq(t, kImpossible), 0);
}

}  // namespace

Tensor reduced(const Tensor& terms, Reduction reduction) {
  if (reduction == Reduction::none) return terms;
  return reduction == Reduction::mean ? mean(terms) : sum(terms);
}

Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  if (Autocast cast("l1_loss"); cast) return l1_loss(cast(a), cast(b), reduction);
  check_pair("l1_loss", a, b);
  return reduced(abs(a - b), reduction);
}

Tensor huber_loss(const Tensor& a, const Tensor& b, const HuberLossOptions& options) {
  if (Autocast cast("huber_loss"); cast) return huber_loss(cast(a), cast(b), options);
  check_pair("huber_loss", a, b);
  if (!(options.delta > 0) || std::isinf(options.delta)) {
    throw ValueError("huber_loss", "a positive, finite delta", to_text(options.delta));
  }
  const Tensor d = a - b, clamped = clamp(d, -options.delta, options.delta);
  return reduced(clamped * (d - clamped * 0.5), options.reduction);
}

Tensor smooth_l1_loss(const Tensor& a, const Tensor& b, const SmoothL1LossOptions& options) {
  constexpr const char* op = "smooth_l1_loss";
  if (Autocast cast(op); cast) return smooth_l1_loss(cast(a), cast(b), options);
  check_pair(op, a, b);
  check_not_negative(op, "beta", options.beta);
  if (options.beta == 0) return l1_loss(a, b, options.reduction);
  if (std::isinf(options.beta)) throw ValueError(op, "a finite beta", to_text(options.beta));
  return huber_loss(a, b, {options.beta, options.reduction}) / options.beta;
}

Tensor kl_div(const Tensor& x, const Tensor& target, const KLDivOptions& options) {
  if (Autocast cast("kl_div"); cast) return kl_div(cast(x), cast(target), options);
  check_pair("kl_div", x, target);
  const Tensor terms = options.log_target ? of_logarithms(target, x)
                                          : times_log(target) - times_logarithm(target, x);
  return reduced(terms, options.reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BinaryCrossEntropyOptions& options) {
  constexpr const char* op = "binary_cross_entropy_with_logits";
  if (Autocast cast(op); cast) {
    return binary_cross_entropy_with_logits(cast(x), cast(target),
                                            {cast(options.pos_weight), options.reduction});
  }
  check_pair(op, x, target);
  const Tensor& weight = options.pos_weight;
  if (weight.defined()) {
    check_compatible(op, x, weight);
    if (broadcast_shapes(x.shape(), weight.shape(), op) != x.shape()) {
      throw ShapeError(op, "a pos_weight that broadcasts to " + to_string(x.shape()),
                       to_string(weight.shape()));
    }
  }
  // -ln p = softplus(-x) and -ln(1 - p) = softplus(x): nothing cancels for logits of either sign.
  Tensor positive = target * softplus(-x);
  if (weight.defined()) positive = weight.detach() * positive;
  return reduced(positive + (1 - target) * softplus(x), options.reduction);
}

Tensor composite::mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  return reduced(square(a - b), reduction);
}

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  if (Autocast cast("mse_loss"); cast) return mse_loss(cast(a), cast(b), reduction);
  check_pair("mse_loss", a, b);
  if (reduction == Reduction::none || !use_fused(kernels::mse_loss_forward, a.device())) {
    return composite::mse_loss(a, b, reduction);
  }
  const Tensor x = a.contiguous(), target = b.contiguous();
  const double scale = reduction == Reduction::mean ? 1 / static_cast<double>(a.numel()) : 1;
  const Tensor y = empty({}, a.options());
  run_kernel(kernels::mse_loss_forward, x, target, y, scale);
  return record("mse_loss", {x, target}, y,
                [x = save(x), target = save(target), scale](Backward& pass, const Tensor& g) {
                  const Tensor from = pass(x), to = pass(target);
                  Tensor da;
                  if (pass.create_graph() || !use_fused(kernels::mse_loss_backward, g.device())) {
                    da = (from - to) * g * (2 * scale);
                  } else {
                    da = empty_like(from);
                    run_kernel(kernels::mse_loss_backward, from, to, g, da, scale);
                  }
                  return Gradients{da, pass.needs(1) ? -da : Tensor()};
                });
}

}  // namespace sash
