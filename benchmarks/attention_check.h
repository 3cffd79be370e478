#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <sash/ops/index/gather.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "../tests/support/attention/attention_reference.h"

namespace sash::bench {

/// A call of attention: q, g, out, dq [B, H, S, D], k, v, dk, dv [B, H_kv, S, D], lse [B, H, S].
struct AttentionCall {
  Tensor q, k, v, g, out, lse, dq, dk, dv;
  testing::Sees sees;
};

/// Compares the results of queries and the gradients of keys, drawn at random and from the ends,
/// with plain loops in float64. A query needs nothing but the keys it sees. A key takes the results
/// of the queries that see it as they are: comparing queries is what checks those.
class AttentionCheck {
 public:
  AttentionCheck(std::string name, const AttentionCall& call, double tolerance)
      : name_(std::move(name)), call_(call), tolerance_(tolerance) {}

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

  int64_t length() const { return call_.q.size(2); }
  int64_t group() const { return call_.q.size(1) / call_.k.size(1); }

  int64_t below(int64_t count) const {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }
  Head head() const { return {below(call_.q.size(0)), below(call_.q.size(1))}; }
  std::vector<int64_t> places(int64_t count) const {
    const int64_t end = length() - 1;
    std::vector<int64_t> chosen{0, end, std::min<int64_t>(63, end), std::min<int64_t>(64, end),
                                end / 2};
    while (static_cast<int64_t>(chosen.size()) < count) chosen.push_back(below(length()));
    return chosen;
  }

  /// Rows `index` of head (b, h) of x [B, H, S, ...] as [1, 1, rows, ...].
  static testing::Array rows(const Tensor& x, int64_t b, int64_t h,
                             const std::vector<int64_t>& index) {
    const Tensor places = tensor(index, {static_cast<int64_t>(index.size())});
    const Tensor some = index_select(x.select(0, b).select(0, h), 0, places.to(x.device()));
    testing::Array array(some.unsqueeze(0).unsqueeze(0).shape());
    array.values = some.to_vector<double>();
    return array;
  }

  /// Queries `i` and keys `j` of one head, all of which see each other.
  testing::AttentionProblem problem(Head at, const std::vector<int64_t>& i,
                                    const std::vector<int64_t>& j) const {
    testing::AttentionProblem p;
    p.q = rows(call_.q, at.batch, at.head, i);
    p.g = rows(call_.g, at.batch, at.head, i);
    p.k = rows(call_.k, at.batch, at.head / group(), j);
    p.v = rows(call_.v, at.batch, at.head / group(), j);
    p.scale = 1 / std::sqrt(static_cast<double>(call_.q.size(3)));
    return p;
  }

  void compare(const std::string& what, const Row& found, const Row& expected) const {
    double difference = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += (found[i] - expected[i]) * (found[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    const auto count = static_cast<double>(expected.size());
    const double error = std::sqrt(difference / count), rms = std::sqrt(size / count);
    if (!(error <= tolerance_ * (rms + 0.01))) {
      throw std::runtime_error(name_ + ": the result is wrong, so it is not timed: " + what +
                               " is " + std::to_string(error) + " away from " +
                               std::to_string(rms) + " in the mean");
    }
  }

  void check_query(Head at, int64_t i) const {
    std::vector<int64_t> keys;
    for (int64_t j = 0; j < length(); ++j) {
      if (call_.sees({at.batch, at.head, i, j})) keys.push_back(j);
    }
    const testing::AttentionAnswer answer = solve(problem(at, {i}, keys));
    const auto check = [&](const std::string& what, const Tensor& x, const testing::Array& y) {
      compare(what + " of query " + std::to_string(i), rows(x, at.batch, at.head, {i}).values,
              y.values);
    };
    check("out", call_.out, answer.out);
    check("lse", call_.lse, answer.lse);
    check("dq", call_.dq, answer.dq);
  }

  void check_key(Head at, int64_t j) const {
    const int64_t b = at.batch, h_kv = at.head / group();
    Row dk(static_cast<size_t>(call_.k.size(3))), dv(static_cast<size_t>(call_.v.size(3)));
    const auto add = [](Row& sum, const Row& x) {
      std::transform(sum.begin(), sum.end(), x.begin(), sum.begin(), std::plus<>());
    };
    for (int64_t h = h_kv * group(); h < (h_kv + 1) * group(); ++h) {
      std::vector<int64_t> queries;
      for (int64_t i = 0; i < length(); ++i) {
        if (call_.sees({b, h, i, j})) queries.push_back(i);
      }
      testing::AttentionProblem p = problem({b, h}, queries, {j});
      p.saved_out = rows(call_.out, b, h, queries);
      p.saved_lse = rows(call_.lse, b, h, queries);
      const testing::AttentionAnswer answer = solve(p);
      add(dk, answer.dk.values);
      add(dv, answer.dv.values);
    }
    const std::string place = " of key " + std::to_string(j);
    compare("dk" + place, rows(call_.dk, b, h_kv, {j}).values, dk);
    compare("dv" + place, rows(call_.dv, b, h_kv, {j}).values, dv);
  }

  std::string name_;
  const AttentionCall& call_;
  double tolerance_;
  mutable std::mt19937_64 random_{1};
};

}  // namespace sash::bench
