#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <sash/tensor/tensor.h>

/// Comparing results, wherever they lie.
namespace sash::testing {

/// ||found - expected|| / ||expected||, without the denominator where it is zero. Infinity if a NaN
/// or an infinity is not where it should be.
inline double relative_error(const std::vector<double>& found,
                             const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  double error = 0, scale = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double x = found[i], y = expected[i];
    if (std::isfinite(y)) {
      error += (x - y) * (x - y);
      scale += y * y;
    } else if (x != y && !(std::isnan(x) && std::isnan(y))) {
      return std::numeric_limits<double>::infinity();
    }
  }
  if (std::isnan(error)) return std::numeric_limits<double>::infinity();
  return std::sqrt(scale == 0 ? error : error / scale);
}
inline double relative_error(const Tensor& found, const Tensor& expected) {
  return relative_error(found.to_vector<double>(), expected.to_vector<double>());
}

/// The largest |a - b|; NaN if there is one.
inline double largest_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

inline bool all_equal(const Tensor& x, double value) {
  for (const double element : x.to_vector<double>()) {
    if (element != value) return false;
  }
  return true;
}

/// Whether shapes, dtypes and elements are equal; no NaN is. Undefined tensors equal each other.
inline bool all_same(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         a.to_vector<double>() == b.to_vector<double>();
}

}  // namespace sash::testing
