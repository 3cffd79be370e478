// Clustered and exact top-k attention beyond what the table of op cases checks: the choices.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <sash/ops/attention/approximate/clustered_attention.h>
#include <sash/ops/attention/approximate/top_k_attention.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/index/topk.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/op_inputs.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Problem {
  Tensor q, k, v;
  ClusteredAttentionOptions options{};

  std::vector<Tensor> inputs() const { return {q, k, v}; }
};

// With lengths, the second batch has 6 keys and queries of S.
Problem make_problem(Device device, DType dtype, int64_t queries, int64_t keys, bool lengths,
                     int64_t depth = 4) {
  manual_seed(3);
  const auto draw = [&](const Shape& shape) {
    return randn(shape, {.dtype = DType::float64, .device = kCPU})
        .to(dtype)
        .to(device)
        .requires_grad_();
  };
  Problem p{draw({2, 4, queries, depth}), draw({2, 2, keys, depth}), draw({2, 2, keys, 3}), {}};
  if (lengths) {
    p.options.key_lengths = tensor<int32_t>({int32_t(keys), 6}, {.device = device});
    p.options.query_lengths = tensor<int32_t>({int32_t(queries), 6}, {.device = device});
  }
  return p;
}

QueryClusters clusters_of(const Problem& p, int64_t count) {
  return cluster_queries(p.q, {.clusters = count, .bits = 8, .iterations = 3},
                         p.options.query_lengths);
}

}  // namespace

TEST_CASE_TEMPLATE("clustered attention: a seed gives the same clusters", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Problem p = make_problem(On::device, DType::float32, 200, 30, false, 16);
  const auto index = [&](uint64_t seed, const Tensor& q) {
    manual_seed(seed);
    return cluster_queries(q, {.clusters = 20}).index.to_vector<int64_t>();
  };
  CHECK(index(1, p.q) == index(1, p.q));
  CHECK(index(1, p.q) == index(1, p.q.to(kCPU)));
  CHECK(index(1, p.q) != index(2, p.q));
  // The state moves on, as with dropout.
  manual_seed(1);
  const auto first = cluster_queries(p.q, {.clusters = 20}).index.to_vector<int64_t>();
  CHECK(first != cluster_queries(p.q, {.clusters = 20}).index.to_vector<int64_t>());
  manual_seed(4);
  const Tensor planes = random_planes(32, 64, true, On::device);
  manual_seed(4);
  CHECK(all_same(planes.to(kCPU), random_planes(32, 64, true, kCPU)));
  CHECK(std::abs(planes.mean().item<double>()) < 0.1);
  CHECK(std::abs(var(planes).item<double>() - 1) < 0.1);
}

TEST_CASE_TEMPLATE("clustered attention: as many clusters as queries are full attention", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const Problem p = make_problem(On::device, DType::float64, 12, 15, false);
  // Each query in a cluster of its own.
  const TensorOptions whole{.dtype = DType::int64, .device = On::device};
  const Tensor place = arange(0, 12, 1, whole).expand({2, 4, 12}).contiguous();
  const QueryClusters own{place, ones({2, 4, 12}, whole), place, place};
  const Tensor full = attention(p.q, p.k, p.v);
  CHECK(largest_difference(clustered_attention(p.q, p.k, p.v, own), full) < 1e-12);
  const Tensor keys = top_keys_of_clusters(p.q, p.k, own, 3);
  CHECK(largest_difference(improved_clustered_attention(p.q, p.k, p.v, own, keys), full) < 1e-12);
  // As many keys as there are: exact, whatever the clusters.
  CHECK(largest_difference(improved_clustered_attention(p.q, p.k, p.v, {.clusters = 2}, 15), full) <
        1e-12);
  CHECK(largest_difference(top_k_attention(p.q, p.k, p.v, 15), full) < 1e-12);
}

TEST_CASE_TEMPLATE("clustered attention: more top keys come closer to full attention", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const Problem p = make_problem(On::device, DType::float64, 300, 300, false, 16);
  const Tensor full = attention(p.q, p.k, p.v);
  const QueryClusters clusters = clusters_of(p, 25);
  double last = relative_error(clustered_attention(p.q, p.k, p.v, clusters), full);
  for (const int64_t top : {8, 64, 256}) {
    const Tensor keys = top_keys_of_clusters(p.q, p.k, clusters, top);
    const double now =
        relative_error(improved_clustered_attention(p.q, p.k, p.v, clusters, keys), full);
    CHECK(now < last);
    last = now;
  }
  CHECK(last < 0.2);
}

TEST_CASE_TEMPLATE("clustered attention: dropout keeps the expectation, and all ends", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  Problem p = make_problem(On::device, DType::float64, 20, 20, false);
  const QueryClusters clusters = clusters_of(p, 5);
  const Tensor keys = top_keys_of_clusters(p.q, p.k, clusters, 4);
  const Tensor exact = improved_clustered_attention(p.q, p.k, p.v, clusters, keys);
  p.options.dropout = 0.3;
  const NoGradGuard no_grad;
  Tensor sum = zeros_like(exact);
  const int rounds = short_tests() ? 3 : 300;
  for (int i = 0; i < rounds; ++i) {
    sum.add_(improved_clustered_attention(p.q, p.k, p.v, clusters, keys, p.options));
  }
  if (!short_tests()) CHECK(relative_error(sum / double(rounds), exact) < 0.1);
  p.options.dropout = 1;
  CHECK(all_equal(improved_clustered_attention(p.q, p.k, p.v, clusters, keys, p.options), 0));
  CHECK(all_equal(clustered_attention(p.q, p.k, p.v, clusters, p.options), 0));
}

TEST_CASE_TEMPLATE("clustered attention: no queries, no keys, no key within a length", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const auto run = [&](int64_t queries, int64_t keys, int32_t length) {
    Problem p = make_problem(On::device, DType::float64, queries, keys, false);
    if (length >= 0) {
      p.options.key_lengths = tensor<int32_t>({int32_t(keys), length}, {.device = On::device});
    }
    const Tensor a = clustered_attention(p.q, p.k, p.v, {.clusters = 3}, p.options);
    const Tensor b = improved_clustered_attention(p.q, p.k, p.v, {.clusters = 3}, 2, p.options);
    const Tensor c = top_k_attention(
        p.q, p.k, p.v, 2,
        {.mask = length < 0 ? AttentionMask() : AttentionMask::key_lengths(p.options.key_lengths)});
    for (const Tensor& y : {a, b, c}) {
      CHECK(y.shape() == Shape{2, 4, queries, 3});
      if (keys == 0) CHECK(all_equal(y, 0));
      if (length == 0) CHECK(all_equal(y.select(0, 1), 0));
      sum(y).backward();
    }
    for (const Tensor& x : p.inputs()) {
      for (const double g : x.grad().to_vector<double>()) CHECK(std::isfinite(g));
    }
  };
  run(0, 5, -1);
  run(5, 0, -1);
  run(1, 1, -1);
  run(7, 9, 0);
}

TEST_CASE_TEMPLATE("clustered attention: keys past the lengths may hold anything", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  Problem p = make_problem(On::device, DType::float64, 12, 9, true);
  const QueryClusters clusters = clusters_of(p, 4);
  const auto run = [&](bool improved) {
    const Tensor y = improved
                         ? improved_clustered_attention(
                               p.q, p.k, p.v, clusters,
                               top_keys_of_clusters(p.q, p.k, clusters, 3, p.options), p.options)
                         : clustered_attention(p.q, p.k, p.v, clusters, p.options);
    std::vector<double> numbers = y.to_vector<double>();
    for (const Tensor& g : grad({sum(y * y)}, p.inputs())) {
      for (const double x : g.to_vector<double>()) numbers.push_back(x);
    }
    return numbers;
  };
  const std::vector<double> plain = run(false), improved = run(true);
  {
    const NoGradGuard no_grad;
    p.k.select(0, 1).slice(1, 6, 9).fill_(NAN);
    p.v.select(0, 1).slice(1, 6, 9).fill_(NAN);
  }
  CHECK(run(false) == plain);
  CHECK(run(true) == improved);
}

TEST_CASE_TEMPLATE("top-k attention: the keys of any mask", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Problem p = make_problem(On::device, DType::float64, 7, 9, false, 3);
  const Tensor lengths = tensor<int32_t>({9, 5}, {.device = On::device});
  for (const AttentionMask& mask :
       std::vector<AttentionMask>{{},
                                  AttentionMask::causal(),
                                  AttentionMask::causal() & AttentionMask::key_lengths(lengths),
                                  AttentionMask::window(2, 1) | AttentionMask::sinks(1)}) {
    CAPTURE(mask.to_string());
    const Tensor keys = top_keys(p.q, p.k, 3, {.mask = mask});
    CHECK(all_same(top_k_attention(p.q, p.k, p.v, 3, {.mask = mask}),
                   top_k_attention(p.q, p.k, p.v, keys)));
    // The same as attention under a mask that shows these keys.
    Array shown({2, 4, 7, 9}), chosen = to_array(keys);
    for_each_index(chosen.shape, [&](const Index& at) {
      if (chosen[at] >= 0) shown[replaced(at, 3, int64_t(chosen[at]))] = 1;
    });
    const Tensor only = to_tensor(shown, DType::boolean, On::device);
    CHECK(largest_difference(top_k_attention(p.q, p.k, p.v, keys),
                             attention(p.q, p.k, p.v, {.mask = only})) < 1e-12);
    const Tensor dense = mask.to_dense({2, 4, 7, 9}, On::device).expand({2, 4, 7, 9});
    CHECK(all_equal(logical_and(only, logical_not(dense)), 0));
    const Array visible = to_array(dense);
    for_each_index({2, 4, 7, 1}, [&](const Index& at) {
      const std::vector<double> row = line(visible, at, 3), found = line(shown, at, 3);
      CHECK(std::count(found.begin(), found.end(), 1) ==
            std::min<int64_t>(3, std::count(row.begin(), row.end(), 1)));
    });
  }
}

TEST_CASE_TEMPLATE("top-k attention: a key out of range is reported, -1 is no key", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Problem p = make_problem(On::device, DType::float32, 3, 6, false);
  const auto keys = [](int64_t key) {
    return full({2, 4, 3, 2}, key, {.dtype = DType::int64, .device = On::device});
  };
  for (const int64_t wrong : {6, -2}) {
    const std::string error =
        error_of<IndexError>(On::device, [&] { top_k_attention(p.q, p.k, p.v, keys(wrong)); });
    CHECK(error.find("indices in [0, 6)") != std::string::npos);
    CHECK(error.find("got " + std::to_string(wrong)) != std::string::npos);
  }
  CHECK(all_equal(top_k_attention(p.q, p.k, p.v, keys(-1)), 0));
}

TEST_CASE_TEMPLATE(
    "clustered attention: a cluster out of range is reported, an old one is not used", On, Cpu,
    Cuda) {
  if (missing(On::device)) return;
  const Problem p = make_problem(On::device, DType::float32, 9, 9, false);
  QueryClusters clusters = clusters_of(p, 3);
  const Tensor y = clustered_attention(p.q, p.k, p.v, clusters);
  clusters.index.fill_(3);
  CHECK_THROWS_AS(sum(y).backward(), AutogradError);
  const std::string error =
      error_of<IndexError>(On::device, [&] { clustered_attention(p.q, p.k, p.v, clusters); });
  CHECK(error.find(", 3)") != std::string::npos);
}

TEST_CASE("hashes of 64 bits, and k-means that separates what is far apart") {
  const Tensor x = tensor({{1.0, 0.0}, {0.0, -1.0}});
  const Tensor planes = zeros({64, 3}, {.dtype = DType::float32});
  planes.narrow(1, 0, 1).fill_(1);
  CHECK(sign_hash(x, planes).to_vector<int64_t>() == std::vector<int64_t>{-1, 0});
  // Two groups of hashes that differ in all bits but one.
  std::vector<int64_t> hashes;
  for (int64_t i = 0; i < 40; ++i) hashes.push_back((i % 2 ? 0xFFFF : 0) ^ (int64_t{1} << i % 16));
  const QueryClusters found = hamming_kmeans(tensor(hashes, {1, 1, 40}), 2, 5, 16);
  const auto index = found.index.to_vector<int64_t>();
  for (size_t i = 0; i < 40; ++i) CHECK(index[i] == index[i % 2]);
  CHECK(index[0] != index[1]);
  CHECK(found.counts.to_vector<int64_t>() == std::vector<int64_t>{20, 20});
}

TEST_CASE("wrong calls: clusters and top-k attention") {
  const Tensor q = randn({1, 2, 5, 4}), k = randn({1, 2, 6, 4});
  const std::string kmeans = "hamming_kmeans: expected ",
                    clustered = "clustered_attention: expected ";
  const Tensor hashes = sign_hash(q, random_planes(8, 4));
  expect_error<ValueError>(kmeans + "a number of clusters of at least 1, got 0",
                           [&] { hamming_kmeans(hashes, 0, 1, 8); });
  expect_error<ValueError>(kmeans + "a number of iterations of at least 1, got 0",
                           [&] { hamming_kmeans(hashes, 2, 0, 8); });
  expect_error<ValueError>(kmeans + "1 to 64 bits, got 65",
                           [&] { hamming_kmeans(hashes, 2, 1, 65); });
  expect_error<DTypeError>(kmeans + "int64, got float32",
                           [&] { hamming_kmeans(q.select(3, 0), 2, 1, 8); });
  expect_error<ShapeError>("sign_hash: expected planes [bits, 5], got [8, 4]",
                           [&] { sign_hash(q, random_planes(8, 3)); });
  expect_error<ValueError>("random_planes: expected 1 to 64 bits, got 0",
                           [&] { random_planes(0, 3); });
  expect_error<ValueError>(clustered + "a top_k of at least 1, got 0",
                           [&] { improved_clustered_attention(q, k, k, ClusterOptions{}, 0); });
  expect_error<ShapeError>(clustered + "shape [1], got [2]", [&] {
    clustered_attention(q, k, k, ClusterOptions{}, {.key_lengths = tensor<int32_t>({1, 2})});
  });
  expect_error<ValueError>("top_k_attention: expected a top_k of at least 1, got -1",
                           [&] { top_k_attention(q, k, k, -1); });
  expect_error<ValueError>("topk: expected k in [0, 4], got 5", [&] { topk(q, 5); });
  CHECK_THROWS_WITH_AS(top_k_attention(q, k, k, full({1, 2, 5, 1}, 6, {.dtype = DType::int64})),
                       doctest::Contains("indices in [0, 6) or -1, got 6"), IndexError);
  CHECK_THROWS_AS(clustered_attention(q, k, randn({1, 2, 5, 4}), ClusterOptions{}), ShapeError);
}
