#include <sash/ops/attention/approximate/clustered_attention.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include <sash/ops/attention/approximate/top_k_attention.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../../support/op_inputs.h"
#include "../cases.h"

/// The choice of clusters and keys is an input, so that gradients can be checked.
namespace sash::testing {
namespace {

struct Sizes {
  int64_t batch, heads, kv_heads, queries, keys, depth, v_depth, clusters;
  int64_t top = 0;  // keys of a cluster; 0: clustered attention
  bool lengths = false;

  Shape weights() const { return {batch, heads, queries, keys}; }
};

// Inputs: q, k, v, the cluster of each query, lengths of keys and queries if any, keys if any.
struct Given {
  const Sizes& s;
  const Arrays& t;

  int64_t key_length(int64_t b) const {
    return s.lengths ? int64_t(t[4].values[size_t(b)]) : s.keys;
  }
  int64_t query_length(int64_t b) const {
    return s.lengths ? int64_t(t[5].values[size_t(b)]) : s.queries;
  }
  const Array& top_keys() const { return t.back(); }
};

// Keys [..., count], distinct and ascending in each row.
InputSpec distinct_keys(const Shape& rows, int64_t keys, int64_t count) {
  Shape shape = rows;
  shape.push_back(count);
  InputSpec spec{.shape = shape, .dtype = DType::int64};
  for (int64_t row = 0; row < numel(rows); ++row) {
    std::vector<double> line;
    for (int64_t i = 0; i < count; ++i) line.push_back(double((7 * row + 3 + i) % keys));
    std::sort(line.begin(), line.end());
    spec.elements.insert(spec.elements.end(), line.begin(), line.end());
  }
  return spec;
}

double score(const Array& q, const Array& k, const Index& at, int64_t key) {
  const int64_t shared = q.shape[1] / k.shape[1];
  double sum = 0;
  for (int64_t d = 0; d < q.shape[3]; ++d) {
    sum += q[replaced(at, 3, d)] * k[{at[0], at[1] / shared, key, d}];
  }
  return sum / std::sqrt(double(q.shape[3]));
}

// Softmax weights over the keys that `seen` names, for the query at `at`.
std::vector<double> weights(const Array& q, const Array& k, const Index& at,
                            const std::function<bool(int64_t)>& seen) {
  std::vector<double> scores;
  for (int64_t j = 0; j < k.shape[2]; ++j) {
    scores.push_back(seen(j) ? score(q, k, at, j) : -kInfinity);
  }
  return softmax_line(scores);
}

double average(const std::vector<double>& w, const Array& v, const Index& at, int64_t heads) {
  double sum = 0;
  for (int64_t j = 0; j < v.shape[2]; ++j) {
    sum += w[size_t(j)] * v[{at[0], at[1] / (heads / v.shape[1]), j, at[3]}];
  }
  return sum;
}

Array mean_queries(const Given& given) {
  const Sizes& s = given.s;
  return generate({s.batch, s.heads, s.clusters, s.depth}, [&](const Index& at) {
    double sum = 0, members = 0;
    for (int64_t i = 0; i < given.query_length(at[0]); ++i) {
      if (given.t[3][{at[0], at[1], i}] != double(at[2])) continue;
      sum += given.t[0][{at[0], at[1], i, at[3]}];
      ++members;
    }
    return members == 0 ? 0 : sum / members;
  });
}

Array expected(const Given& given) {
  const Sizes& s = given.s;
  const Array &q = given.t[0], &k = given.t[1], &v = given.t[2], mean = mean_queries(given);
  return generate({s.batch, s.heads, s.queries, s.v_depth}, [&](const Index& at) {
    const int64_t n = given.key_length(at[0]);
    const Index cluster = replaced(at, 2, int64_t(given.t[3][{at[0], at[1], at[2]}]));
    std::set<int64_t> chosen;
    for (int64_t i = 0; i < s.top; ++i) {
      const auto key = int64_t(given.top_keys()[replaced(cluster, 3, i)]);
      if (key < n) chosen.insert(key);
    }
    auto all = weights(mean, k, cluster, [&](int64_t j) { return j < n; });
    double weight = 0;
    for (const int64_t j : chosen) weight += all[size_t(j)], all[size_t(j)] = 0;
    const auto own = weights(q, k, at, [&](int64_t j) { return chosen.count(j) > 0; });
    return average(all, v, at, s.heads) + weight * average(own, v, at, s.heads);
  });
}

// Clusters with the given index [B, H, N].
QueryClusters clusters_of(const Sizes& s, const Tensor& index, const Tensor& lengths) {
  const Array of = to_array(index);
  Array counts({s.batch, s.heads, s.clusters}), order(of.shape), rank(of.shape);
  for_each_index({s.batch, s.heads}, [&](const Index& head) {
    const int64_t n = s.lengths ? int64_t(to_array(lengths).values[size_t(head[0])]) : s.queries;
    std::vector<int64_t> places(size_t(s.queries));
    std::iota(places.begin(), places.end(), 0);
    const auto at = [&](int64_t i) { return with(head, 2, i); };
    std::stable_sort(places.begin(), places.end(),
                     [&](int64_t a, int64_t b) { return of[at(a)] < of[at(b)]; });
    for (int64_t i = 0; i < s.queries; ++i) {
      order[at(i)] = double(places[size_t(i)]);
      rank[at(places[size_t(i)])] = double(i);
      if (i < n) ++counts[at(int64_t(of[at(i)]))];
    }
  });
  const auto made = [&](const Array& x) { return to_tensor(x, DType::int64, index.device()); };
  return {index, made(counts), made(order), made(rank)};
}

ClusteredAttentionOptions options_of(const Sizes& s, const Tensors& t) {
  ClusteredAttentionOptions options;
  if (s.lengths) options.key_lengths = t[4], options.query_lengths = t[5];
  return options;
}

std::vector<InputSpec> inputs_of(const Sizes& s, Layout layout) {
  std::vector<InputSpec> inputs{{{s.batch, s.heads, s.queries, s.depth}, layout},
                                {{s.batch, s.kv_heads, s.keys, s.depth}, layout},
                                {{s.batch, s.kv_heads, s.keys, s.v_depth}, layout},
                                indices({s.batch, s.heads, s.queries}, s.clusters)};
  for (const int64_t extent : {s.keys, s.queries}) {
    if (!s.lengths) continue;
    inputs.push_back(
        {.shape = {s.batch}, .low = 0, .high = double(extent) + 1, .dtype = DType::int32});
  }
  if (s.top > 0) {
    inputs.push_back(distinct_keys({s.batch, s.heads, s.clusters}, s.keys, s.top));
  }
  return inputs;
}

void add_clustered(OpTable& table, const Sizes& s, Layout layout = contiguous) {
  const std::vector<InputSpec> inputs = inputs_of(s, layout);
  table.push_back({
      .op = s.top > 0 ? "improved_clustered_attention" : "clustered_attention",
      .variant = describe(inputs[0]) + ", " + to_string(inputs[1].shape) + ", " +
                 to_string(inputs[2].shape) + ", " + std::to_string(s.clusters) + " clusters" +
                 (s.top > 0 ? ", top " + std::to_string(s.top) : "") +
                 (s.lengths ? ", lengths" : ""),
      .inputs = inputs,
      .run =
          [s](const Tensors& t) {
            const QueryClusters clusters = clusters_of(s, t[3], s.lengths ? t[5] : Tensor());
            if (s.top == 0)
              return clustered_attention(t[0], t[1], t[2], clusters, options_of(s, t));
            return improved_clustered_attention(t[0], t[1], t[2], clusters, t.back(),
                                                options_of(s, t));
          },
      .reference =
          [s](const Arrays& t) {
            return expected({s, t});
          },
      .half_rounds = 16,  // of mean queries, scores and weights, and of parts of the result
      .half_gradient_rounds = 32,
      .half_gradient_scale = 4,
      .fast_checks = true,
  });
}

// In float64, where no scores are close enough to change places.
void add_top_keys_of_clusters(OpTable& table, const Sizes& s) {
  Sizes without = s;
  without.top = 0;
  table.push_back({
      .op = "top_keys_of_clusters",
      .variant = to_string(s.weights()) + ", top " + std::to_string(s.top) +
                 (s.lengths ? ", lengths" : ""),
      .inputs = inputs_of(without, contiguous),
      .run =
          [s](const Tensors& t) {
            return top_keys_of_clusters(t[0], t[1],
                                        clusters_of(s, t[3], s.lengths ? t[5] : Tensor()), s.top,
                                        options_of(s, t));
          },
      .reference =
          [s](const Arrays& t) {
            const Given given{s, t};
            const Array mean = mean_queries(given);
            Array y({s.batch, s.heads, s.clusters, s.top});
            for_each_index({s.batch, s.heads, s.clusters, 1}, [&](const Index& at) {
              std::vector<int64_t> order(size_t(s.keys));
              std::iota(order.begin(), order.end(), 0);
              const int64_t n = given.key_length(at[0]);
              std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
                if (a >= n || b >= n) return a < n && b >= n;
                return score(mean, t[1], at, a) > score(mean, t[1], at, b);
              });
              for (int64_t i = 0; i < s.top; ++i) {
                y[replaced(at, 3, i)] = double(order[size_t(i)]);
              }
            });
            return y;
          },
      .dtypes = {DType::float64},
      .results = {DType::int64},
      .differentiable = false,
  });
}

// The visible keys with the highest scores, -1 where there are fewer; query i sees keys up to
// i + S_k - S_q.
Array causal_top_keys(const Sizes& s, const Arrays& t) {
  Array y({s.batch, s.heads, s.queries, s.top}, -1);
  for_each_index({s.batch, s.heads, s.queries, 1}, [&](const Index& at) {
    std::vector<int64_t> order;
    for (int64_t j = 0; j <= at[2] + s.keys - s.queries; ++j) order.push_back(j);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return score(t[0], t[1], at, a) > score(t[0], t[1], at, b);
    });
    for (size_t i = 0; i < std::min(order.size(), size_t(s.top)); ++i) {
      y[replaced(at, 3, int64_t(i))] = double(order[i]);
    }
  });
  return y;
}

void add_top_k(OpTable& table, const Sizes& s, Layout layout = contiguous) {
  const std::vector<InputSpec> qk{{{s.batch, s.heads, s.queries, s.depth}, layout},
                                  {{s.batch, s.kv_heads, s.keys, s.depth}, layout}};
  table.push_back({
      .op = "top_keys",
      .variant = describe(qk[0]) + ", " + to_string(qk[1].shape) + ", top " + std::to_string(s.top),
      .inputs = qk,
      .run =
          [s](const Tensors& t) {
            return top_keys(t[0], t[1], s.top, {.mask = AttentionMask::causal()});
          },
      .reference = [s](const Arrays& t) { return causal_top_keys(s, t); },
      .dtypes = {DType::float64},
      .results = {DType::int64},
      .differentiable = false,
  });
  InputSpec keys = distinct_keys({s.batch, s.heads, s.queries}, s.keys, s.top);
  // Some lists are shorter, the last one is empty.
  for (size_t i = 0; i < keys.elements.size(); i += 5) keys.elements[i] = -1;
  std::fill_n(keys.elements.end() - s.top, s.top, -1.0);
  table.push_back({
      .op = "top_k_attention",
      .variant = describe(qk[0]) + ", " + to_string(qk[1].shape) + ", top " + std::to_string(s.top),
      .inputs = {qk[0], qk[1], {{s.batch, s.kv_heads, s.keys, s.v_depth}, layout}, keys},
      .run = [](const Tensors& t) { return top_k_attention(t[0], t[1], t[2], t[3]); },
      .reference =
          [s](const Arrays& t) {
            return generate({s.batch, s.heads, s.queries, s.v_depth}, [&](const Index& at) {
              const auto own = weights(t[0], t[1], at, [&](int64_t j) {
                for (int64_t i = 0; i < s.top; ++i) {
                  if (t[3][replaced(at, 3, i)] == double(j)) return true;
                }
                return false;
              });
              return average(own, t[2], at, s.heads);
            });
          },
      .half_rounds = 8,  // of the scores, and of the weights
      .half_gradient_rounds = 16,
      .half_gradient_scale = 4,
      .fast_checks = true,
  });
}

void add_planes(OpTable& table, bool bias) {
  constexpr uint64_t kSeed = 31;
  table.push_back({
      .op = "random_planes",
      .variant = bias ? "with offsets" : "without offsets",
      .inputs = {{{1}}},
      .run =
          [bias](const Tensors& t) {
            manual_seed(kSeed);
            return random_planes(5, 3, bias, t[0].device());
          },
      .reference =
          [bias](const Arrays&) {
            return generate({5, 4}, [&](const Index& at) {
              double sum = -6;
              for (uint64_t i = 0; i < 12; ++i) {
                const auto element = static_cast<uint64_t>(at[0] * 4 + at[1]) * 12 + i;
                sum += std::ldexp(double(random_word(kSeed, element)), -32);
              }
              return bias || at[1] < 3 ? static_cast<double>(static_cast<float>(sum)) : 0;
            });
          },
      .dtypes = {DType::float32},
      .results = {DType::float32},
      .differentiable = false,
  });
}

}  // namespace

void add_clustered_attention(OpTable& table) {
  for (const bool lengths : {false, true}) {
    for (const int64_t top : {0, 1, 4}) {
      const auto sized = [&](Sizes s) {
        s.top = top, s.lengths = lengths;
        return s;
      };
      add_clustered(table, sized({1, 1, 1, 5, 6, 3, 2, 2}));
      add_clustered(table, sized({2, 4, 2, 9, 7, 4, 5, 3}), heads);
      add_clustered(table, sized({2, 2, 2, 70, 40, 8, 8, 6}));
      add_clustered(table, sized({1, 2, 1, 4, 9, 16, 16, 7}), transposed);  // empty clusters
    }
    add_top_keys_of_clusters(table, {2, 4, 2, 19, 23, 5, 1, 4, 6, lengths});
  }
  add_top_k(table, {1, 1, 1, 5, 6, 3, 2, 0, 2});
  add_top_k(table, {2, 4, 2, 7, 9, 4, 5, 0, 3}, heads);
  add_top_k(table, {1, 2, 2, 70, 70, 16, 16, 0, 17});
  add_planes(table, true);
  add_planes(table, false);
}

}  // namespace sash::testing
