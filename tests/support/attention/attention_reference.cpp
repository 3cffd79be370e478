#include "attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sash::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One query's scores and what they become.
struct Row {
  std::vector<double> slope;    // of the softcap at each key
  std::vector<double> weight;   // softmax
  std::vector<double> dropped;  // factors 0 or 1 / (1 - p)
  double lse = kInfinity;
};

class Solver {
 public:
  explicit Solver(const AttentionProblem& problem)
      : p_(problem),
        heads_(problem.q.shape[1]),
        queries_(problem.q.shape[2]),
        keys_(problem.k.shape[2]),
        group_(problem.k.shape[1] == 0 ? 1 : heads_ / problem.k.shape[1]) {}

  AttentionAnswer run() {
    answer_.out = Array({p_.q.shape[0], heads_, queries_, p_.v.shape[3]});
    answer_.lse = Array({p_.q.shape[0], heads_, queries_});
    answer_.dq = Array(p_.q.shape);
    answer_.dk = Array(p_.k.shape);
    answer_.dv = Array(p_.v.shape);
    answer_.dbias = Array(p_.bias.shape);
    answer_.drelative = Array(p_.relative_bias.shape);
    for_each_index(answer_.lse.shape, [&](const Index& at) { solve_row(at[0], at[1], at[2]); });
    for (Array* sum : {&answer_.dq, &answer_.dk, &answer_.dv, &answer_.dbias, &answer_.drelative}) {
      for (double& value : sum->values) value = p_.round(value);
    }
    return answer_;
  }

 private:
  // The features of row [b, h, i] of x [B, H, S, D].
  template <class A>
  static auto* features(A& x, int64_t b, int64_t h, int64_t i) {
    return x.values.data() + ((b * x.shape[1] + h) * x.shape[2] + i) * x.shape[3];
  }
  static double dot(const double* x, const double* y, int64_t count) {
    return std::inner_product(x, x + count, y, 0.0);
  }
  // to += factor x
  static void add(double* to, double factor, const double* x, int64_t count) {
    for (int64_t d = 0; d < count; ++d) to[d] += factor * x[d];
  }

  void solve_row(int64_t b, int64_t h, int64_t i) {
    const Row row = weights_of(b, h, i);
    answer_.lse[{b, h, i}] = row.lse;
    const int64_t kv = h / group_, depth = p_.v.shape[3];
    double* const out = features(answer_.out, b, h, i);
    for (int64_t j = 0; j < keys_; ++j) {
      add(out, p_.round(row.weight[index(j)] * row.dropped[index(j)]), features(p_.v, b, kv, j),
          depth);
    }
    for (int64_t d = 0; d < depth; ++d) out[d] = p_.round(out[d]);
    if (!p_.g.values.empty()) gradients_of_row(row, b, h, i);
  }

  void gradients_of_row(const Row& row, int64_t b, int64_t h, int64_t i) {
    const int64_t kv = h / group_, depth = p_.v.shape[3];
    const double* const g = features(p_.g, b, h, i);
    const double* const out = features(saved() ? p_.saved_out : answer_.out, b, h, i);
    const double g_lse = p_.g_lse.values.empty() ? 0 : p_.g_lse[{b, h, i}];
    const double expected = p_.round(dot(g, out, depth) - g_lse);
    for (int64_t j = 0; j < keys_; ++j) {
      const double weight = p_.round(row.weight[index(j)] * row.dropped[index(j)]);
      add(features(answer_.dv, b, kv, j), weight, g, depth);
      const double product = p_.round(dot(g, features(p_.v, b, kv, j), depth));
      const double slope = p_.round(product * row.dropped[index(j)]) - expected;
      spread(b, h, i, j, p_.round(row.weight[index(j)] * slope), row.slope[index(j)]);
    }
  }

  // Adds the gradient `ds` of one score to those of what it was made from.
  void spread(int64_t b, int64_t h, int64_t i, int64_t j, double ds, double slope) {
    if (!p_.bias.values.empty()) answer_.dbias[{h, i, j}] += ds;
    if (!p_.relative_bias.values.empty()) answer_.drelative[{h, distance_index(i, j)}] += ds;
    const double dx = ds * slope * p_.scale;
    const int64_t kv = h / group_, depth = p_.q.shape[3];
    add(features(answer_.dq, b, h, i), dx, features(p_.k, b, kv, j), depth);
    add(features(answer_.dk, b, kv, j), dx, features(p_.q, b, h, i), depth);
  }

  Row weights_of(int64_t b, int64_t h, int64_t i) {
    Row row;
    std::vector<double> scores;
    for (int64_t j = 0; j < keys_; ++j) {
      double score =
          p_.scale * dot(features(p_.q, b, h, i), features(p_.k, b, h / group_, j), p_.q.shape[3]);
      score = p_.round(score);
      row.slope.push_back(1);
      if (p_.softcap > 0) {
        const double t = std::tanh(score / p_.softcap);
        row.slope.back() = 1 - t * t;
        score = p_.round(p_.softcap * t);
      }
      score = p_.round(score + biases(h, i, j));
      scores.push_back(p_.sees({b, h, i, j}) ? score : -kInfinity);
    }
    const bool sink = !p_.sink_logits.empty();
    if (sink) scores.push_back(p_.sink_logits[index(h)]);
    if (saved()) {
      for (const double s : scores) row.weight.push_back(std::exp(s - p_.saved_lse[{b, h, i}]));
    } else {
      row.weight = softmax_line(scores);
    }
    for (double& weight : row.weight) weight = p_.round(weight);
    if (std::any_of(scores.begin(), scores.end(), [](double s) { return s > -kInfinity; })) {
      row.lse = log_sum_exp(scores);
    }
    if (sink) {  // it takes part in the softmax alone
      scores.pop_back();
      row.weight.pop_back();
    }
    row.dropped.assign(scores.size(), 1);
    const double p = std::round(p_.dropout * 4096) / 4096;
    for (int64_t j = 0; p > 0 && j < keys_; ++j) {
      const bool kept = keeps_weight(p_.seed, (b * heads_ + h) * queries_ + i, j, p);
      row.dropped[index(j)] = kept ? 1 / (1 - p) : 0;
    }
    return row;
  }

  double biases(int64_t h, int64_t i, int64_t j) const {
    double sum = 0;
    if (!p_.bias.values.empty()) sum += p_.bias[{h, i, j}];
    if (!p_.relative_bias.values.empty()) sum += p_.relative_bias[{h, distance_index(i, j)}];
    if (!p_.slopes.empty()) {
      sum -= p_.slopes[index(h)] * std::abs(static_cast<double>(i + keys_ - queries_ - j));
    }
    return sum;
  }

  int64_t distance_index(int64_t i, int64_t j) const {
    const int64_t reach = p_.relative_bias.shape[1] / 2;
    return std::clamp(j - (i + keys_ - queries_), -reach, reach) + reach;
  }

  bool saved() const { return !p_.saved_lse.values.empty(); }
  static size_t index(int64_t i) { return static_cast<size_t>(i); }

  const AttentionProblem& p_;
  int64_t heads_, queries_, keys_, group_;
  AttentionAnswer answer_;
};

}  // namespace

AttentionAnswer solve(const AttentionProblem& problem) { return Solver(problem).run(); }

}  // namespace sash::testing
