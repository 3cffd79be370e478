#pragma once

#include "../../ops/loss/cross_entropy.h"
#include "../../ops/loss/mse_loss.h"
#include "../module.h"

/// Losses as objects that keep their options; see the ops `cross_entropy` and `mse_loss`. Classes
/// are the last axis of logits; for PyTorch's [N, C, T] say `{.class_axis = 1}`.
namespace sash::nn {

class SASH_API CrossEntropyLoss : public Module {
 public:
  explicit CrossEntropyLoss(const CrossEntropyOptions& options = {}) : options_(options) {}

  Tensor operator()(const Tensor& logits, const Tensor& targets) const {
    return cross_entropy(logits, targets, options_);
  }

 private:
  CrossEntropyOptions options_;
};

class SASH_API MSELoss : public Module {
 public:
  explicit MSELoss(Reduction reduction = Reduction::mean) : reduction_(reduction) {}

  Tensor operator()(const Tensor& a, const Tensor& b) const { return mse_loss(a, b, reduction_); }

 private:
  Reduction reduction_;
};

}  // namespace sash::nn
