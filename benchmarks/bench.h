#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <sash/core/backend.h>
#include <sash/tensor/tensor.h>

namespace sash::bench {

/// Milliseconds of the median call, after two calls to warm up.
template <class Call>
double median_ms(Device device, int calls, Call&& call) {
  std::vector<double> times;
  for (int i = 0; i < calls + 2; ++i) {
    synchronize(device);
    const auto start = std::chrono::steady_clock::now();
    call();
    synchronize(device);
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - start;
    if (i >= 2) times.push_back(spent.count());
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<size_t>(calls / 2)];
}

/// `value` with so many decimals, for people who read the lines.
inline double rounded(double value, int decimals) {
  const double unit = std::pow(10, decimals);
  return std::round(value * unit) / unit;
}

/// One figure as one line of JSON.
inline void print(const nlohmann::ordered_json& figure) { std::cout << figure.dump() << std::endl; }

/// Throws unless |a - b| <= tolerance max(1, |b|) for every element; nothing wrong is ever timed.
inline void check_close(const std::string& what, const Tensor& a, const Tensor& b,
                        double tolerance) {
  const auto got = a.to_vector<double>(), wanted = b.to_vector<double>();
  bool close = got.size() == wanted.size();
  for (size_t i = 0; close && i < got.size(); ++i) {
    close = std::abs(got[i] - wanted[i]) <= tolerance * std::max(1.0, std::abs(wanted[i]));
  }
  if (!close) throw std::runtime_error(what + ": the result is wrong, so it is not timed");
}

}  // namespace sash::bench
