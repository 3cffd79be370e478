#pragma once

#include "../module.h"

namespace sash::nn {

struct LinearOptions {
  bool bias = true;
};

/// y = x weight^T + bias, for x of shape [..., in].
///
/// Parameters: `weight` [out, in] and `bias` [out], both U(-1/sqrt(in), 1/sqrt(in)) at first.
class SASH_API Linear : public Module {
 public:
  /// `ValueError` unless both extents are positive.
  Linear(int64_t in_features, int64_t out_features, LinearOptions options = {});
  /// Shares parameters made elsewhere, for tied weights: `Linear(embedding.weight)`. `ShapeError`
  /// unless weight is [out, in] and bias, if defined, [out].
  explicit Linear(const Tensor& weight, const Tensor& bias = {});

  /// `ShapeError` unless the last extent of x is `in`.
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

  Tensor weight;
  Tensor bias;  ///< undefined without one
};

}  // namespace sash::nn
