#pragma once

#include "../../ops/norm/rms_norm.h"
#include "norm.h"

namespace sash::nn {

using sash::RMSNormOptions;

/// y = x / sqrt(mean(x^2) + eps) * weight over the last axis: see `rms_norm`.
///
/// Parameter: `weight` [dim], ones at first.
class SASH_API RMSNorm : public Norm {
 public:
  using Options = RMSNormOptions;

  /// `ValueError` unless dim is positive and eps above 0.
  explicit RMSNorm(int64_t dim, const RMSNormOptions& options = {});

  /// `ShapeError` unless the last extent of x is dim.
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  const RMSNormOptions& options() const { return options_; }

 private:
  SumAndNorm add_and_normalise(const Tensor& branch, const Tensor& residual, double p) override;

  int64_t dim_;
  RMSNormOptions options_;
};

}  // namespace sash::nn
