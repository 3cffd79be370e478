#pragma once

#include "../../ops/elementwise/gelu.h"
#include "../module.h"

/// Activations as modules, for `Sequential`; each is the op of the same name.
namespace sash::nn {

/// max(x, 0).
class SASH_API ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// tanh(x).
class SASH_API Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// 1 / (1 + e^-x).
class SASH_API Sigmoid : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// x / (1 + e^-x).
class SASH_API SiLU : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// ln(1 + e^x).
class SASH_API Softplus : public Module {
 public:
  Tensor forward(const Tensor& x) override;
};

/// e^x / sum of e^x along an axis, the last by default.
class SASH_API Softmax : public Module {
 public:
  explicit Softmax(int64_t axis = -1) : axis_(axis) {}

  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  int64_t axis_;
};

/// x - log(sum of e^x) along an axis, the last by default.
class SASH_API LogSoftmax : public Module {
 public:
  explicit LogSoftmax(int64_t axis = -1) : axis_(axis) {}

  Tensor forward(const Tensor& x) override;
  std::string describe() const override;

 private:
  int64_t axis_;
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
