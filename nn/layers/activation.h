#pragma once

#include "../../ops/elementwise/gelu.h"
#include "../../ops/elementwise/unary.h"
#include "../../ops/norm/softmax.h"
#include "../module.h"

/// Activations as modules, for `Sequential`; each is the op of the same name.
namespace sash::nn {

/// An op of x alone, computed by `function(x)`.
template <auto function>
class ElementwiseModule : public Module {
 public:
  Tensor forward(const Tensor& x) override { return function(x); }
};

/// max(x, 0).
class SASH_API ReLU : public ElementwiseModule<relu> {};
/// tanh(x).
class SASH_API Tanh : public ElementwiseModule<tanh> {};
/// 1 / (1 + e^-x).
class SASH_API Sigmoid : public ElementwiseModule<sigmoid> {};
/// x / (1 + e^-x).
class SASH_API SiLU : public ElementwiseModule<silu> {};
/// ln(1 + e^x).
class SASH_API Softplus : public ElementwiseModule<softplus> {};

/// An op along an axis, the last by default, computed by `function(x, axis)`.
template <auto function>
class AlongAxis : public Module {
 public:
  explicit AlongAxis(int64_t axis = -1) : axis_(axis) {}

  Tensor forward(const Tensor& x) override { return function(x, axis_); }
  std::string describe() const override { return type_name() + "(" + std::to_string(axis_) + ")"; }

 private:
  int64_t axis_;
};

/// e^x / sum of e^x along an axis.
class SASH_API Softmax : public AlongAxis<softmax> {
  using AlongAxis::AlongAxis;
};

/// x - log(sum of e^x) along an axis.
class SASH_API LogSoftmax : public AlongAxis<log_softmax> {
  using AlongAxis::AlongAxis;
};

/// x Phi(x) (Hendrycks and Gimpel, 2016), exact by default.
class SASH_API GELU : public Module {
 public:
  explicit GELU(GeluApproximation approximation = GeluApproximation::none)
      : approximation_(approximation) {}

  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  GeluApproximation approximation_;
};

}  // namespace sash::nn
