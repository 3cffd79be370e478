#pragma once

#include "../../ops/loss/binary_cross_entropy.h"
#include "../../ops/loss/cross_entropy.h"
#include "../../ops/loss/huber_loss.h"
#include "../../ops/loss/kl_div.h"
#include "../../ops/loss/l1_loss.h"
#include "../../ops/loss/mse_loss.h"
#include "../../ops/loss/nll_loss.h"
#include "../../ops/loss/smooth_l1_loss.h"
#include "../module.h"

/// Losses as objects that store their options: `nn::HuberLoss loss({.delta = 2}); loss(y, target)`.
/// Each calls the op named in its comment. Classes are the last axis of logits; for PyTorch's [N,
/// C, T] use `{.class_axis = 1}`. `Module::to` does not move or cast weights of the options.
namespace sash::nn {

/// A loss of two tensors, computed by `function(a, b, options)`.
template <class LossOptions, auto function>
class Loss : public Module {
 public:
  using Options = LossOptions;

  explicit Loss(const LossOptions& options = {}) : options_(options) {}

  Tensor operator()(const Tensor& a, const Tensor& b) const {
    return call([&] { return function(a, b, options_); }, a, b);
  }

 private:
  LossOptions options_;
};

/// `mse_loss`: mean of (a - b)^2.
class SASH_API MSELoss : public Loss<Reduction, mse_loss> {
 public:
  explicit MSELoss(Reduction reduction = Reduction::mean) : Loss(reduction) {}
};

/// `l1_loss`: mean of |a - b|.
class SASH_API L1Loss : public Loss<Reduction, l1_loss> {
 public:
  explicit L1Loss(Reduction reduction = Reduction::mean) : Loss(reduction) {}
};

/// `huber_loss`: quadratic near 0, linear beyond `delta`.
class SASH_API HuberLoss : public Loss<HuberLossOptions, huber_loss> {
  using Loss::Loss;
};

/// `smooth_l1_loss`: the Huber loss divided by `beta`.
class SASH_API SmoothL1Loss : public Loss<SmoothL1LossOptions, smooth_l1_loss> {
  using Loss::Loss;
};

/// `binary_cross_entropy_with_logits`.
class SASH_API BCEWithLogitsLoss
    : public Loss<BinaryCrossEntropyOptions, binary_cross_entropy_with_logits> {
  using Loss::Loss;
};

/// `nll_loss` of log probabilities and classes.
class SASH_API NLLLoss : public Loss<NLLLossOptions, nll_loss> {
  using Loss::Loss;
};

/// `kl_div` of log probabilities and probabilities.
class SASH_API KLDivLoss : public Loss<KLDivOptions, kl_div> {
  using Loss::Loss;
};

/// `cross_entropy` of logits and classes.
class SASH_API CrossEntropyLoss : public Loss<CrossEntropyOptions, cross_entropy> {
  using Loss::Loss;
};

}  // namespace sash::nn
