#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <sash/ops/attention/attention.h>
#include <sash/ops/index/gather.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

namespace sash::bench {

/// An attention's inputs, the cotangent of its result, and which pairs are visible, as a plain
/// comparison that knows nothing of masks.
struct AttentionProblem {
  Tensor q, k, v, g;  ///< [B, H or H_kv, S, D]
  std::function<bool(const MaskIndex&)> visible;
};

/// What attention made of it.
struct AttentionAnswer {
  Tensor out, lse, dq, dk, dv;
};

/// Compares queries and keys, drawn at random and from the ends, with plain loops in float64.
/// Results and gradients of a query need nothing but its own keys. Gradients of a key also take the
/// results of the queries that see it, as they are: those are what the comparison of queries is
/// for.
class AttentionCheck {
 public:
  AttentionCheck(std::string name, const AttentionProblem& problem, const AttentionAnswer& answer,
                 double tolerance)
      : name_(std::move(name)), problem_(problem), answer_(answer), tolerance_(tolerance) {}

  /// Throws unless |a - b| <= tolerance (|b| + 0.01) in the mean of squares, for each row compared.
  void run() const {
    const NoGradGuard no_grad;
    for (const int64_t i : places(kQueries)) check_query(head(), i);
    for (const int64_t j : places(kKeys)) check_key(head(), j);
  }

 private:
  using Row = std::vector<double>;
  struct Head {
    int64_t batch, head;
  };

  static constexpr int64_t kQueries = 12, kKeys = 6;  // of which five lie at the ends

  int64_t length() const { return problem_.q.size(2); }
  int64_t group() const { return problem_.q.size(1) / problem_.k.size(1); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(problem_.q.size(3))); }

  int64_t below(int64_t count) const {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }
  Head head() const { return {below(problem_.q.size(0)), below(problem_.q.size(1))}; }
  std::vector<int64_t> places(int64_t count) const {
    const int64_t end = length() - 1;
    std::vector<int64_t> chosen{0, end, std::min<int64_t>(63, end), std::min<int64_t>(64, end),
                                end / 2};
    while (static_cast<int64_t>(chosen.size()) < count) chosen.push_back(below(length()));
    return chosen;
  }

  /// Rows `index` of head (b, h) of x [B, H, S, ...], one after the other.
  static Row rows(const Tensor& x, int64_t b, int64_t h, const std::vector<int64_t>& index) {
    const Tensor places = tensor(index, {static_cast<int64_t>(index.size())});
    return index_select(x.detach().select(0, b).select(0, h), 0, places.to(x.device()))
        .to_vector<double>();
  }

  static double dot(const Row& a, const double* b) {
    return std::inner_product(a.begin(), a.end(), b, 0.0);
  }
  static void add(Row& sum, double factor, const double* row) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * row[i];
  }

  void compare(const std::string& what, const Row& got, const Row& wanted) const {
    double apart = 0, size = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      apart += (got[i] - wanted[i]) * (got[i] - wanted[i]);
      size += wanted[i] * wanted[i];
    }
    const auto count = static_cast<double>(wanted.size());
    const double error = std::sqrt(apart / count), rms = std::sqrt(size / count);
    if (!(error <= tolerance_ * (rms + 0.01))) {
      throw std::runtime_error(name_ + ": the result is wrong, so it is not timed: " + what +
                               " is " + std::to_string(error) + " away from " +
                               std::to_string(rms) + " in the mean");
    }
  }

  struct Weights {
    Row p;
    double lse;
  };

  /// softmax(scale k q) over the rows of k.
  Weights weights(const Row& q, const Row& k) const {
    Weights result{Row(k.size() / q.size()), -INFINITY};
    double largest = -INFINITY, sum = 0;
    for (size_t n = 0; n < result.p.size(); ++n) {
      result.p[n] = scale() * dot(q, k.data() + n * q.size());
      largest = std::max(largest, result.p[n]);
    }
    for (double& s : result.p) sum += s = std::exp(s - largest);
    for (double& s : result.p) s /= sum;
    result.lse = largest + std::log(sum);
    return result;
  }

  void check_query(Head at, int64_t i) const {
    const auto [b, h] = at;
    std::vector<int64_t> keys;
    for (int64_t j = 0; j < length(); ++j) {
      if (problem_.visible({b, h, i, j})) keys.push_back(j);
    }
    const Row q = rows(problem_.q, b, h, {i}), g = rows(problem_.g, b, h, {i});
    const Row k = rows(problem_.k, b, h / group(), keys),
              v = rows(problem_.v, b, h / group(), keys);
    const auto [p, lse] = weights(q, k);
    Row out(g.size()), dq(q.size());
    for (size_t n = 0; n < keys.size(); ++n) add(out, p[n], v.data() + n * g.size());
    const double mean = dot(g, out.data());
    for (size_t n = 0; n < keys.size(); ++n) {
      const double dp = dot(g, v.data() + n * g.size());
      add(dq, scale() * p[n] * (dp - mean), k.data() + n * q.size());
    }
    const std::string place = " of query " + std::to_string(i);
    compare("out" + place, rows(answer_.out, b, h, {i}), out);
    compare("lse" + place, rows(answer_.lse, b, h, {i}), {lse});
    compare("dq" + place, rows(answer_.dq, b, h, {i}), dq);
  }

  void check_key(Head at, int64_t j) const {
    const int64_t b = at.batch, h_kv = at.head / group();
    const Row k = rows(problem_.k, b, h_kv, {j}), v = rows(problem_.v, b, h_kv, {j});
    Row dk(k.size()), dv(v.size());
    for (int64_t h = h_kv * group(); h < (h_kv + 1) * group(); ++h) {
      std::vector<int64_t> queries;
      for (int64_t i = 0; i < length(); ++i) {
        if (problem_.visible({b, h, i, j})) queries.push_back(i);
      }
      const Row q = rows(problem_.q, b, h, queries), g = rows(problem_.g, b, h, queries);
      const Row out = rows(answer_.out, b, h, queries), lse = rows(answer_.lse, b, h, queries);
      for (size_t n = 0; n < queries.size(); ++n) {
        const double *qn = q.data() + n * k.size(), *gn = g.data() + n * v.size();
        const double p = std::exp(scale() * dot(k, qn) - lse[n]);
        const double mean = std::inner_product(gn, gn + v.size(), out.data() + n * v.size(), 0.0);
        add(dv, p, gn);
        add(dk, scale() * p * (dot(v, gn) - mean), qn);
      }
    }
    const std::string place = " of key " + std::to_string(j);
    compare("dk" + place, rows(answer_.dk, b, h_kv, {j}), dk);
    compare("dv" + place, rows(answer_.dv, b, h_kv, {j}), dv);
  }

  std::string name_;
  const AttentionProblem& problem_;
  const AttentionAnswer& answer_;
  double tolerance_;
  mutable std::mt19937_64 random_{1};
};

}  // namespace sash::bench
