#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <sash/nn/module.h>

/// Attention of one sequence in plain loops over float64, to compare modules with, and how.
namespace sash::testing {

using Values = std::vector<double>;

/// y = x W' + b for rows of x; as many columns as b has elements.
inline Values plain_linear(const Values& x, const Values& w, const Values& b) {
  const size_t out = b.size(), in = w.size() / out, rows = x.size() / in;
  Values y(rows * out);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < out; ++o) {
      y[r * out + o] = b[o];
      for (size_t i = 0; i < in; ++i) y[r * out + o] += x[r * in + i] * w[o * in + i];
    }
  }
  return y;
}

/// What attention of S queries to S keys depends on besides them.
struct PlainRules {
  size_t heads = 1, kv_heads = 1, head_dim = 1;
  std::function<bool(size_t h, size_t i, size_t j)> visible = [](size_t, size_t, size_t) {
    return true;
  };
  /// What becomes of scale q . k.
  std::function<double(double score, size_t h, size_t i, size_t j)> changed =
      [](double score, size_t, size_t, size_t) { return score; };
};

/// The heads' results side by side, for q [S, heads D] and k, v [S, kv_heads D]. A row that sees
/// nothing is zero.
inline Values plain_heads(const Values& q, const Values& k, const Values& v,
                          const PlainRules& rules) {
  const size_t d = rules.head_dim, wide = rules.heads * d, narrow = rules.kv_heads * d;
  const size_t s = q.size() / wide;
  Values out(q.size(), 0.0);
  for (size_t h = 0; h < rules.heads; ++h) {
    const size_t group = h * rules.kv_heads / rules.heads;
    for (size_t i = 0; i < s; ++i) {
      Values p(s, 0.0);
      double total = 0;
      for (size_t j = 0; j < s; ++j) {
        if (!rules.visible(h, i, j)) continue;
        double score = 0;
        for (size_t n = 0; n < d; ++n) {
          score += q[i * wide + h * d + n] * k[j * narrow + group * d + n];
        }
        total += p[j] = std::exp(rules.changed(score / std::sqrt(double(d)), h, i, j));
      }
      for (size_t j = 0; total > 0 && j < s; ++j) {
        for (size_t n = 0; n < d; ++n) {
          out[i * wide + h * d + n] += p[j] / total * v[j * narrow + group * d + n];
        }
      }
    }
  }
  return out;
}

/// The names of a module's parameters and buffers, in their order.
inline std::vector<std::string> keys(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : module.state_dict()) names.push_back(name);
  return names;
}

/// The largest |a - b|; NaN if there is one.
inline double largest_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const Values x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace sash::testing
