#include "compare.h"
#include "gelu.h"
#include "unary.h"
#include "where.h"

/// The members of `Tensor` that are elementwise ops.
namespace sash {

Tensor Tensor::operator-() const { return sash::neg(*this); }
Tensor Tensor::abs() const { return sash::abs(*this); }
Tensor Tensor::ceil() const { return sash::ceil(*this); }
Tensor Tensor::cos() const { return sash::cos(*this); }
Tensor Tensor::erf() const { return sash::erf(*this); }
Tensor Tensor::exp() const { return sash::exp(*this); }
Tensor Tensor::expm1() const { return sash::expm1(*this); }
Tensor Tensor::floor() const { return sash::floor(*this); }
Tensor Tensor::gelu() const { return sash::gelu(*this); }
Tensor Tensor::isfinite() const { return sash::isfinite(*this); }
Tensor Tensor::isnan() const { return sash::isnan(*this); }
Tensor Tensor::log() const { return sash::log(*this); }
Tensor Tensor::log1p() const { return sash::log1p(*this); }
Tensor Tensor::logical_not() const { return sash::logical_not(*this); }
Tensor Tensor::neg() const { return sash::neg(*this); }
Tensor Tensor::reciprocal() const { return sash::reciprocal(*this); }
Tensor Tensor::relu() const { return sash::relu(*this); }
Tensor Tensor::round() const { return sash::round(*this); }
Tensor Tensor::rsqrt() const { return sash::rsqrt(*this); }
Tensor Tensor::sigmoid() const { return sash::sigmoid(*this); }
Tensor Tensor::sign() const { return sash::sign(*this); }
Tensor Tensor::silu() const { return sash::silu(*this); }
Tensor Tensor::sin() const { return sash::sin(*this); }
Tensor Tensor::softplus() const { return sash::softplus(*this); }
Tensor Tensor::sqrt() const { return sash::sqrt(*this); }
Tensor Tensor::square() const { return sash::square(*this); }
Tensor Tensor::tanh() const { return sash::tanh(*this); }
Tensor Tensor::pow(Scalar exponent) const { return sash::pow(*this, exponent); }
Tensor Tensor::clamp(std::optional<Scalar> low, std::optional<Scalar> high) const {
  return sash::clamp(*this, low, high);
}
Tensor Tensor::masked_fill(const Tensor& mask, Scalar value) const {
  return sash::masked_fill(*this, mask, value);
}

}  // namespace sash
