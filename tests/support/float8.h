#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <sash/ops/kernels/float8.h>

/// FP8 numbers in float64, by search among all of them.
namespace sash::testing {

/// The values of the codes from 0 to the largest number, by the definition of the formats.
inline std::vector<double> float8_values(kernels::Float8 format) {
  const bool e4m3 = format == kernels::Float8::e4m3;
  const int mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, count = e4m3 ? 0x7f : 0x7c;
  std::vector<double> values;
  for (int code = 0; code < count; ++code) {
    const int exponent = code >> mantissa;
    const double part = std::ldexp(code % (1 << mantissa), -mantissa);
    values.push_back(std::ldexp(exponent == 0 ? part : 1 + part, std::max(exponent, 1) - bias));
  }
  return values;
}

/// The code nearest to x; of two the even one. NaN is 0x7f, infinity 0x7c where the format has it.
inline uint8_t float8_code(double x, kernels::Float8 format) {
  if (std::isnan(x)) return 0x7f;
  if (std::isinf(x) && format == kernels::Float8::e5m2) return x > 0 ? 0x7c : 0xfc;
  const std::vector<double> values = float8_values(format);
  const double size = std::min(std::abs(x), values.back());
  const auto above =
      static_cast<size_t>(std::lower_bound(values.begin(), values.end(), size) - values.begin());
  size_t code = above;
  if (above > 0) {
    const double up = values[above] - size, down = size - values[above - 1];
    if (down < up || (down == up && above % 2 == 1)) code = above - 1;
  }
  return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

inline double float8_value(uint8_t code, kernels::Float8 format) {
  const std::vector<double> values = float8_values(format);
  const size_t size = code & 0x7f;
  if (size >= values.size()) return std::numeric_limits<double>::quiet_NaN();
  return (code & 0x80) != 0 ? -values[size] : values[size];
}

/// The numbers as a cast with one scale leaves them, as float32 has it.
inline std::vector<double> quantised(std::vector<double> x, kernels::Float8 format) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  const float scale = kernels::float8_scale(format, static_cast<float>(largest));
  for (double& value : x) {
    value = float8_value(float8_code(static_cast<float>(value) * scale, format), format) / scale;
  }
  return x;
}

}  // namespace sash::testing
