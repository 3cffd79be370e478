#pragma once

#include "norm.h"

namespace sash::nn {

struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;  ///< whether there are a weight and a bias
  bool bias = true;    ///< whether an affine one has a bias
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias over the last axes (Ba, Kiros and Hinton,
/// 2016).
///
/// Parameters, of the normalised shape: `weight`, ones at first, and `bias`, zeros.
class SASH_API LayerNorm : public Norm {
 public:
  using Options = LayerNormOptions;

  explicit LayerNorm(int64_t dim, LayerNormOptions options = {});
  /// `ValueError` for an empty shape, or eps not above 0.
  explicit LayerNorm(const Shape& shape, LayerNormOptions options = {});

  /// `ShapeError` unless the last extents of x are the normalised shape.
  Tensor forward(const Tensor& x) override;
  std::string describe() const override;
  double eps() const { return eps_; }

 private:
  SumAndNorm add_and_normalise(const Tensor& branch, const Tensor& residual, double p) override;

  Shape shape_;
  double eps_;
};

}  // namespace sash::nn
