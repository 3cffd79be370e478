#pragma once

#include <cmath>

namespace sash::testing {

/// f, its derivatives along u and along w, and the second one along both (Fike and Alonso, "The
/// development of hyper-dual numbers for exact second-derivative calculations", AIAA 2011).
struct HyperDual {
  double value = 0, u = 0, w = 0, uw = 0;
};

/// f(x), from f(x.value) and its first and second derivative there.
inline HyperDual chain(const HyperDual& x, double f, double df, double ddf) {
  return {f, df * x.u, df * x.w, df * x.uw + ddf * x.u * x.w};
}
inline HyperDual operator+(const HyperDual& a, const HyperDual& b) {
  return {a.value + b.value, a.u + b.u, a.w + b.w, a.uw + b.uw};
}
inline HyperDual operator-(const HyperDual& a, const HyperDual& b) {
  return {a.value - b.value, a.u - b.u, a.w - b.w, a.uw - b.uw};
}
inline HyperDual operator*(const HyperDual& a, const HyperDual& b) {
  return {a.value * b.value, a.u * b.value + a.value * b.u, a.w * b.value + a.value * b.w,
          a.uw * b.value + a.u * b.w + a.w * b.u + a.value * b.uw};
}
inline HyperDual inverse(const HyperDual& x) {
  const double f = 1 / x.value;
  return chain(x, f, -f * f, 2 * f * f * f);
}
inline HyperDual operator/(const HyperDual& a, const HyperDual& b) { return a * inverse(b); }
inline HyperDual exp(const HyperDual& x) {
  const double f = std::exp(x.value);
  return chain(x, f, f, f);
}
inline HyperDual log(const HyperDual& x) {
  const double f = 1 / x.value;
  return chain(x, std::log(x.value), f, -f * f);
}
inline HyperDual sqrt(const HyperDual& x) {
  const double f = std::sqrt(x.value);
  return chain(x, f, 0.5 / f, -0.25 / (f * x.value));
}
inline HyperDual sin(const HyperDual& x) {
  return chain(x, std::sin(x.value), std::cos(x.value), -std::sin(x.value));
}
inline HyperDual cos(const HyperDual& x) {
  return chain(x, std::cos(x.value), -std::sin(x.value), -std::cos(x.value));
}
inline HyperDual erf(const HyperDual& x) {
  const double slope = 2 / std::sqrt(std::acos(-1.0)) * std::exp(-x.value * x.value);
  return chain(x, std::erf(x.value), slope, -2 * x.value * slope);
}
inline HyperDual number(double value) { return {value, 0, 0, 0}; }

}  // namespace sash::testing
