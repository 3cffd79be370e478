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

/// x itself, in the place of another module.
class SASH_API Identity : public Module {
 public:
  Tensor forward(const Tensor& x) override { return x; }
};

/// An op of x with a number, computed by `function(x, number)`.
template <auto function>
class WithNumber : public Module {
 public:
  explicit WithNumber(double number) : number_(number) {}

  Tensor forward(const Tensor& x) override { return function(x, number_); }
  std::string describe() const override { return type_name() + "(" + to_text(number_) + ")"; }

 private:
  double number_;
};

/// x for x > 0, else slope x.
class SASH_API LeakyReLU : public WithNumber<leaky_relu> {
 public:
  explicit LeakyReLU(double slope = 0.01) : WithNumber(slope) {}
};

/// x for x > 0, else alpha (e^x - 1).
class SASH_API ELU : public WithNumber<elu> {
 public:
  explicit ELU(double alpha = 1) : WithNumber(alpha) {}
};

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
