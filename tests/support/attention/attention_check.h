#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <sash/ops/index/gather.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "attention_reference.h"

/// Rows of long calls of attention against plain loops in float64, for these rows alone.
namespace sash::testing {

/// A call of attention: q, g, out, dq [B, H, S, D], k, v, dk, dv [B, H_kv, S, D], lse [B, H, S].
struct AttentionCall {
  Tensor q, k, v, g, out, lse, dq, dk, dv;
  Sees sees;
};

/// A compared row: of "out", "lse", "dq", "dk" or "dv". Root mean squares over its elements: of the
/// difference, and of what it should be.
struct CheckedRow {
  std::string what;
  int64_t row;
  double error, size;
};

/// Compares the results of queries and the gradients of keys, drawn at random and from the ends,
/// with plain loops in float64. A query needs nothing but the keys it sees. A key takes the results
/// of the queries that see it as they are: comparing queries is what checks those.
class AttentionCheck {
 public:
  explicit AttentionCheck(AttentionCall call) : call_(std::move(call)) {}

  /// So many queries and keys, of which five lie at the ends.
  std::vector<CheckedRow> rows(int64_t queries, int64_t keys) {
    const NoGradGuard no_grad;
    rows_.clear();
    for (const int64_t i : places(queries)) check_query(head(), i);
    for (const int64_t j : places(keys)) check_key(head(), j);
    return rows_;
  }

 private:
  using Row = std::vector<double>;
  struct Head {
    int64_t batch, head;
  };

  int64_t length() const { return call_.q.size(2); }
  int64_t group() const { return call_.q.size(1) / call_.k.size(1); }

  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }
  Head head() { return {below(call_.q.size(0)), below(call_.q.size(1))}; }
  std::vector<int64_t> places(int64_t count) {
    const int64_t end = length() - 1;
    std::vector<int64_t> chosen{0, end, std::min<int64_t>(63, end), std::min<int64_t>(64, end),
                                end / 2};
    while (static_cast<int64_t>(chosen.size()) < count) chosen.push_back(below(length()));
    return chosen;
  }

  /// Rows `index` of head (b, h) of x [B, H, S, ...] as [1, 1, rows, ...].
  static Array rows_of(const Tensor& x, int64_t b, int64_t h, const std::vector<int64_t>& index) {
    const Tensor places = tensor(index, {static_cast<int64_t>(index.size())});
    const Tensor some = index_select(x.select(0, b).select(0, h), 0, places.to(x.device()));
    Array array(some.unsqueeze(0).unsqueeze(0).shape());
    array.values = some.to_vector<double>();
    return array;
  }

  /// Queries `i` and keys `j` of one head, all of which see each other.
  AttentionProblem problem(Head at, const std::vector<int64_t>& i,
                           const std::vector<int64_t>& j) const {
    AttentionProblem p;
    p.q = rows_of(call_.q, at.batch, at.head, i);
    p.g = rows_of(call_.g, at.batch, at.head, i);
    p.k = rows_of(call_.k, at.batch, at.head / group(), j);
    p.v = rows_of(call_.v, at.batch, at.head / group(), j);
    p.scale = 1 / std::sqrt(static_cast<double>(call_.q.size(3)));
    return p;
  }

  void compare(const std::string& what, int64_t row, const Row& found, const Row& expected) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += (found[i] - expected[i]) * (found[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    const auto count = static_cast<double>(expected.size());
    rows_.push_back({what, row, std::sqrt(difference / count), std::sqrt(size / count)});
  }

  void check_query(Head at, int64_t i) {
    std::vector<int64_t> keys;
    for (int64_t j = 0; j < length(); ++j) {
      if (call_.sees({at.batch, at.head, i, j})) keys.push_back(j);
    }
    const AttentionAnswer answer = solve(problem(at, {i}, keys));
    const auto check = [&](const std::string& what, const Tensor& x, const Array& y) {
      compare(what, i, rows_of(x, at.batch, at.head, {i}).values, y.values);
    };
    check("out", call_.out, answer.out);
    check("lse", call_.lse, answer.lse);
    check("dq", call_.dq, answer.dq);
  }

  void check_key(Head at, int64_t j) {
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
      AttentionProblem p = problem({b, h}, queries, {j});
      p.saved_out = rows_of(call_.out, b, h, queries);
      p.saved_lse = rows_of(call_.lse, b, h, queries);
      const AttentionAnswer answer = solve(p);
      add(dk, answer.dk.values);
      add(dv, answer.dv.values);
    }
    compare("dk", j, rows_of(call_.dk, b, h_kv, {j}).values, dk);
    compare("dv", j, rows_of(call_.dv, b, h_kv, {j}).values, dv);
  }

  AttentionCall call_;
  std::vector<CheckedRow> rows_;
  std::mt19937_64 random_{1};
};

}  // namespace sash::testing
