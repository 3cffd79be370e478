#include <sash/ops/attention/approximate/clusters.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "../cases.h"

namespace sash::testing {
namespace {

void add_hash(OpTable& table, const InputSpec& x, int64_t bits, bool timed = false) {
  const InputSpec planes{.shape = {bits, x.shape.back() + 1}, .dtype = DType::float32};
  table.push_back({
      .op = "sign_hash",
      .variant =
          std::string(timed ? "timed " : "") + describe(x) + ", " + std::to_string(bits) + " bits",
      .inputs = {x, planes},
      .run = [](const Tensors& t) { return sign_hash(t[0], t[1]); },
      .reference =
          [bits](const Arrays& t) {
            const int last = t[0].shape.rank() - 1;
            return generate(without(t[0].shape, last), [&](const Index& at) {
              double hash = 0;
              for (int64_t b = 0; b < bits; ++b) {
                double side = 0;
                for (int64_t d = 0; d < t[0].shape[last]; ++d) {
                  side += t[0][with(at, last, d)] * t[1][{b, d}];
                }
                if (side + t[1][{b, t[0].shape[last]}] > 0) hash += std::ldexp(1.0, int(b));
              }
              return hash;
            });
          },
      .results = {DType::int64},
      .differentiable = false,
      .timed = timed,
  });
}

struct Problem {
  int64_t clusters, iterations, bits;
};

struct Answer {
  std::vector<double> cluster, counts, order, rank;
};

// One group of hashes, of which the first `n` count.
Answer solve(const std::vector<uint64_t>& hashes, size_t n, const Problem& problem) {
  const size_t count = std::min(static_cast<size_t>(problem.clusters), hashes.size());
  std::vector<uint64_t> centroids(count);
  for (size_t c = 0; c < count; ++c) centroids[c] = hashes[c * n / count];
  Answer answer;
  for (int64_t i = 0; i < problem.iterations; ++i) {
    answer.cluster.clear();
    for (const uint64_t hash : hashes) {
      const auto nearest =
          std::min_element(centroids.begin(), centroids.end(), [&](uint64_t a, uint64_t b) {
            return std::popcount(a ^ hash) < std::popcount(b ^ hash);
          });
      answer.cluster.push_back(double(nearest - centroids.begin()));
    }
    answer.counts.assign(count, 0);
    for (size_t l = 0; l < n; ++l) ++answer.counts[size_t(answer.cluster[l])];
    if (i + 1 == problem.iterations) break;
    const auto bits = size_t(problem.bits);
    std::vector<double> ones(count * bits);
    for (size_t l = 0; l < n; ++l) {
      double* const of = ones.data() + size_t(answer.cluster[l]) * bits;
      for (size_t b = 0; b < bits; ++b) of[b] += double(hashes[l] >> b & 1);
    }
    for (size_t c = 0; c < count; ++c) {
      if (answer.counts[c] == 0) continue;
      centroids[c] = 0;
      for (size_t b = 0; b < bits; ++b) {
        if (2 * ones[c * bits + b] > answer.counts[c]) centroids[c] |= uint64_t{1} << b;
      }
    }
  }
  answer.order.resize(hashes.size());
  std::iota(answer.order.begin(), answer.order.end(), 0.0);
  std::stable_sort(answer.order.begin(), answer.order.end(), [&](double a, double b) {
    return answer.cluster[size_t(a)] < answer.cluster[size_t(b)];
  });
  answer.rank.resize(hashes.size());
  for (size_t i = 0; i < hashes.size(); ++i) answer.rank[size_t(answer.order[i])] = double(i);
  return answer;
}

void add_kmeans(OpTable& table, const Shape& shape, const Problem& problem, bool lengths,
                bool timed = false) {
  // More bits than count: those above must be ignored.
  std::vector<InputSpec> inputs{
      indices(shape, int64_t{1} << std::min<int64_t>(problem.bits + 2, 40))};
  if (lengths) {
    inputs.push_back({.shape = {shape[0]},
                      .low = 0,
                      .high = static_cast<double>(shape[2]) + 1,
                      .dtype = DType::int32});
  }
  table.push_back({
      .op = "hamming_kmeans",
      .variant = std::string(timed ? "timed " : "") + to_string(shape) + ", " +
                 std::to_string(problem.clusters) + " clusters, " +
                 std::to_string(problem.iterations) + " iterations, " +
                 std::to_string(problem.bits) + " bits" + (lengths ? ", lengths" : ""),
      .inputs = inputs,
      .run =
          [=](const Tensors& t) {
            const QueryClusters found = hamming_kmeans(t[0], problem.clusters, problem.iterations,
                                                       problem.bits, lengths ? t[1] : Tensor());
            return Tensors{found.index, found.counts, found.order, found.rank};
          },
      .reference =
          [=](const Arrays& t) {
            const int64_t n = shape[2], count = std::clamp<int64_t>(n, 1, problem.clusters);
            Array index(shape), order(shape), rank(shape), counts(replaced(shape, 2, count));
            for (int64_t g = 0; n > 0 && g < shape[0] * shape[1]; ++g) {
              std::vector<uint64_t> hashes;
              for (int64_t l = 0; l < n; ++l) {
                hashes.push_back(uint64_t(t[0].values[size_t(g * n + l)]) &
                                 (~uint64_t{0} >> (64 - problem.bits)));
              }
              const double counted = lengths ? t[1].values[size_t(g / shape[1])] : double(n);
              const Answer answer = solve(hashes, size_t(counted), problem);
              std::copy(answer.cluster.begin(), answer.cluster.end(), index.values.begin() + g * n);
              std::copy(answer.order.begin(), answer.order.end(), order.values.begin() + g * n);
              std::copy(answer.rank.begin(), answer.rank.end(), rank.values.begin() + g * n);
              std::copy(answer.counts.begin(), answer.counts.end(),
                        counts.values.begin() + g * count);
            }
            return Arrays{index, counts, order, rank};
          },
      .dtypes = {DType::float32},
      .results = {DType::int64, DType::int64, DType::int64, DType::int64},
      .differentiable = false,
      .timed = timed,
  });
}

}  // namespace

void add_clusters(OpTable& table) {
  add_hash(table, {{5, 3}}, 4);
  add_hash(table, {{2, 3, 7, 16}, heads}, 32);
  add_hash(table, {{9, 5}, transposed}, 33);
  add_hash(table, {{70, 65}, sliced}, 40);
  add_hash(table, {{0, 4}}, 8);
  for (const bool lengths : {false, true}) {
    add_kmeans(table, {1, 1, 9}, {3, 4, 6}, lengths);
    add_kmeans(table, {2, 3, 40}, {7, 5, 16}, lengths);
    add_kmeans(table, {2, 2, 700}, {20, 3, 32}, lengths);
    add_kmeans(table, {1, 2, 5}, {8, 3, 38}, lengths);  // fewer hashes than clusters
    add_kmeans(table, {2, 1, 300}, {300, 2, 64}, lengths);
    add_kmeans(table, {1, 1, 50}, {4, 1, 1}, lengths);
  }
  add_kmeans(table, {2, 2, 0}, {4, 3, 8}, false);
  add_hash(table, {{8192, 64}}, 32, true);
  add_kmeans(table, {1, 8, 8192}, {100, 10, 32}, false, true);
}

}  // namespace sash::testing
