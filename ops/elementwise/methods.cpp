#include "../op.h"
#include "gelu.h"

/// The members of `Tensor` that are elementwise ops, and the operators that `tensor.h` declares,
/// but for those in place.
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
Tensor Tensor::isinf() const { return sash::isinf(*this); }
Tensor Tensor::isnan() const { return sash::isnan(*this); }
Tensor Tensor::log() const { return sash::log(*this); }
Tensor Tensor::log1p() const { return sash::log1p(*this); }
Tensor Tensor::log2() const { return sash::log2(*this); }
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

Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
Tensor operator-(const Tensor& a, Scalar b) { return sub(a, b); }
Tensor operator-(Scalar a, const Tensor& b) { return sub(a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
Tensor operator/(Scalar a, const Tensor& b) { return div(a, b); }
Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
Tensor operator%(const Tensor& a, Scalar b) { return remainder(a, b); }
Tensor operator%(Scalar a, const Tensor& b) { return remainder(a, b); }

Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
Tensor operator==(const Tensor& a, Scalar b) { return eq(a, b); }
Tensor operator==(Scalar a, const Tensor& b) { return eq(b, a); }
Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
Tensor operator!=(const Tensor& a, Scalar b) { return ne(a, b); }
Tensor operator!=(Scalar a, const Tensor& b) { return ne(b, a); }
Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
Tensor operator<(const Tensor& a, Scalar b) { return lt(a, b); }
Tensor operator<(Scalar a, const Tensor& b) { return gt(b, a); }
Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
Tensor operator<=(const Tensor& a, Scalar b) { return le(a, b); }
Tensor operator<=(Scalar a, const Tensor& b) { return ge(b, a); }
Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
Tensor operator>(const Tensor& a, Scalar b) { return gt(a, b); }
Tensor operator>(Scalar a, const Tensor& b) { return lt(b, a); }
Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
Tensor operator>=(const Tensor& a, Scalar b) { return ge(a, b); }
Tensor operator>=(Scalar a, const Tensor& b) { return le(b, a); }

Tensor operator&(const Tensor& a, const Tensor& b) { return logical_and(a, b); }
Tensor operator|(const Tensor& a, const Tensor& b) { return logical_or(a, b); }

}  // namespace sash
