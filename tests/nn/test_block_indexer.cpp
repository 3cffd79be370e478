// nn::BlockIndexer and block_probabilities: sums of dense attention's weights, the KL term by its
// definition, gradients, and that training finds the blocks that dense attention would.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

// Sums of the weights over blocks of keys, one by one.
Tensor plain_sums(const Tensor& q, const Tensor& k, int64_t block,
                  const AttentionOptions& options) {
  const Tensor all = attention_probabilities(q, k, options);
  std::vector<Tensor> sums;
  for (int64_t first = 0; first < k.size(2); first += block) {
    sums.push_back(all.narrow(3, first, std::min(block, k.size(2) - first)).sum({3}));
  }
  return stack(sums, 3);
}

void check_sums(Device device) {
  manual_seed(1);
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
    for (const int64_t block : {1, 16, 100}) {
      const Tensor q = randn({2, 4, 30, 8}, kDoubles).to(dtype).to(device);
      const Tensor k = randn({2, 2, 600, 8}, kDoubles).to(dtype).to(device);
      const AttentionOptions options{.mask = AttentionMask::causal_window(590), .scale = 0.7};
      const Tensor found = block_probabilities(q, k, block, options);
      CHECK(found.dtype() == dtype);
      CHECK(found.shape() == Shape{2, 4, 30, (600 + block - 1) / block});
      const Tensor expected =
          plain_sums(q.to(DType::float64), k.to(DType::float64), block, options);
      const double limit = dtype == DType::float64 ? 1e-12 : dtype == DType::float32 ? 1e-5 : 1e-2;
      CHECK(relative_error(found, expected) <= limit);
    }
  }
  CHECK(block_probabilities(zeros({1, 2, 3, 4}), zeros({1, 1, 0, 4}), 2).shape() ==
        Shape{1, 2, 3, 0});
}

// Tokens of a block share a topic. Random projections of them make q and k [B, H, S, D].
struct Texts {
  static constexpr int64_t kBlock = 4, kBlocks = 16, kDim = 16;

  explicit Texts(Device device) {
    for (Tensor* w : {&to_q, &to_k}) *w = (randn({kDim, kDim}) * 0.5).to(device);
  }
  Tensor draw(int64_t count) const {
    const Tensor topics = randn({count, kBlocks, 1, kDim}).expand({count, kBlocks, kBlock, kDim});
    const Tensor x = topics + randn(topics.shape()) * 0.3;
    return x.reshape({count, kBlocks * kBlock, kDim}).to(to_q.device());
  }
  Tensor q(const Tensor& x) const { return split_heads(matmul(x, to_q), 1); }
  Tensor k(const Tensor& x) const { return split_heads(matmul(x, to_k), 1); }

  Tensor to_q, to_k;
};

// The share of dense attention's weight that lies in selected blocks, of the most that a selection
// of so many blocks can have.
double share_of_best(nn::BlockIndexer& indexer, const Texts& texts, int64_t top_k) {
  const NoGradGuard no_grad;
  const Tensor x = texts.draw(8);
  const Tensor weights =
      block_probabilities(texts.q(x), texts.k(x), Texts::kBlock, {.mask = AttentionMask::causal()})
          .mean({1});
  const Tensor own = arange(x.size(1), {.device = x.device()}).to(DType::float32) / Texts::kBlock;
  const Tensor is_own = eq(floor(own).unsqueeze(1), arange(Texts::kBlocks, {.device = x.device()}));
  const Tensor best = topk(where(is_own, 2.0, weights), top_k).indices;
  const Tensor index = indexer.select(x).squeeze(1).to(DType::int64);
  const Tensor none = lt(index, 0);
  const Tensor found = where(none, 0.0, gather(weights, 2, where(none, int64_t{0}, index)));
  return found.sum().item<double>() / gather(weights, 2, best).sum().item<double>();
}

void check_learns(Device device) {
  manual_seed(2);
  const Texts texts(device);
  nn::BlockIndexer indexer(Texts::kDim, {.block = Texts::kBlock, .top_k = 4, .head_dim = 16});
  indexer.to(device);
  const double before = share_of_best(indexer, texts, 4);
  optim::AdamW optimizer(indexer.parameters(), {.lr = 1e-2});
  double first = 0, last = 0;
  for (int step = 0; step < 400; ++step) {
    const Tensor x = texts.draw(4);
    optimizer.zero_grad();
    const Tensor loss = indexer.loss(x, texts.q(x), texts.k(x));
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  const double after = share_of_best(indexer, texts, 4);
  CAPTURE(first);
  CAPTURE(last);
  CHECK(last < 0.3 * first);
  CHECK(before < 0.75);
  CHECK(after > 0.95);
}

}  // namespace

TEST_CASE_TEMPLATE("block_probabilities: sums of attention's weights", On, Cpu, Cuda) {
  if (!missing(On::device)) check_sums(On::device);
}

TEST_CASE("block_probabilities: gradients") {
  manual_seed(3);
  const Tensor q = randn({1, 4, 7, 3}, kDoubles).requires_grad_();
  const Tensor k = randn({1, 2, 9, 3}, kDoubles).requires_grad_();
  const auto f = [](const std::vector<Tensor>& x) {
    return block_probabilities(x[0], x[1], 4, {.mask = AttentionMask::causal()});
  };
  CHECK(gradcheck(f, {q, k}).or_throw());
}

TEST_CASE("BlockIndexer: scores, selection and loss by their definitions") {
  manual_seed(4);
  constexpr int64_t kBlock = 3, kLength = 11, kHeads = 2, kWidth = 5;
  nn::BlockIndexer indexer(6, {.block = kBlock, .top_k = 2, .heads = kHeads, .head_dim = kWidth});
  indexer.to(DType::float64);
  const Tensor x = randn({2, kLength, 6}, kDoubles).requires_grad_();
  const Tensor q = randn({2, 4, kLength, 3}, kDoubles), k = randn({2, 2, kLength, 3}, kDoubles);
  const Tensor scores = indexer(x), index = indexer.select(x);
  const Tensor dense = plain_sums(q, k, kBlock, {.mask = AttentionMask::causal()}).mean({1});
  const Tensor queries = linear(x, indexer.q_proj.weight), keys = linear(x, indexer.k_proj.weight),
               weights = linear(x, indexer.weights.weight, indexer.weights.bias);
  const auto at = [](const Tensor& t, int64_t b, int64_t i, int64_t n) {
    return t.select(0, b).select(0, i).select(0, n).item<double>();
  };
  double kl = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < kLength; ++t) {
      const int64_t ended = t / kBlock;
      std::vector<double> expected;
      double total = 0, mass = 0;
      for (int64_t c = 0; c < ended; ++c) {
        double score = 0;
        for (int64_t j = 0; j < kHeads; ++j) {
          double product = 0;
          for (int64_t n = 0; n < kBlock * kWidth; ++n) {
            product += at(queries, b, t, j * kWidth + n % kWidth) *
                       at(keys, b, c * kBlock + n / kWidth, n % kWidth) / kBlock;
          }
          score += at(weights, b, t, j) * std::max(product, 0.0) / std::sqrt(double(kWidth));
        }
        CHECK(at(scores, b, t, c) == doctest::Approx(score));
        expected.push_back(score);
        total += std::exp(score);
        mass += at(dense, b, t, c);
      }
      for (int64_t c = 0; c < ended; ++c) {
        const double p = at(dense, b, t, c) / mass;
        kl += p * (std::log(p) - expected[size_t(c)] + std::log(total)) / (2 * kLength);
      }
      const Tensor row = index.select(0, b).select(0, 0).select(0, t);
      CHECK(row.select(0, 0).item<int32_t>() == ended);  // the own block
      const auto best = std::max_element(expected.begin(), expected.end());
      CHECK(row.select(0, 1).item<int32_t>() == (ended == 0 ? -1 : best - expected.begin()));
    }
  }
  const Tensor loss = indexer.loss(x, q, k);
  CHECK(loss.item<double>() == doctest::Approx(kl));
  loss.backward();
  CHECK(!x.grad().defined());
  const auto f = [&](const std::vector<Tensor>&) { return indexer.loss(x, q, k); };
  CHECK(gradcheck(f, indexer.parameters()).or_throw());
}

TEST_CASE_TEMPLATE("BlockIndexer: learns the blocks that dense attention would select", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_learns(On::device);
}

TEST_CASE("BlockIndexer: a block with NaN is not selected, the own block always is") {
  nn::BlockIndexer indexer(4, {.block = 2, .top_k = 1});
  Tensor x = randn({1, 6, 4});
  x.narrow(1, 1, 1).fill_(std::nan(""));
  CHECK(indexer.select(x).to_vector<int32_t>() == std::vector<int32_t>{0, 0, 1, 1, 2, 2});
}

TEST_CASE("BlockIndexer: halves, texts shorter than a block, wrong calls") {
  nn::BlockIndexer indexer(8, {.block = 4, .top_k = 3});
  const Tensor q = randn({1, 2, 3, 4}), x = randn({1, 3, 8});
  CHECK(indexer.loss(x, q, q).item<double>() == 0);
  CHECK(indexer.select(x).shape() == Shape{1, 1, 3, 1});
  indexer.to(DType::bfloat16);
  const Tensor long_x = randn({1, 9, 8}).to(DType::bfloat16), heads = randn({1, 2, 9, 4});
  const Tensor loss = indexer.loss(long_x, heads.to(DType::bfloat16), heads.to(DType::bfloat16));
  CHECK(loss.dtype() == DType::float32);
  CHECK(std::isfinite(loss.item<double>()));
  const std::string wrong_heads =
      "ShapeError: BlockIndexer: expected q [B, H, S, D] and k [B, H_kv, S, D] with x [B, S, dim], "
      "got ";
  expect_errors({
      {"ValueError: BlockIndexer: expected a positive block, got 0",
       [] { nn::BlockIndexer(8, {.block = 0}); }},
      {"ShapeError: BlockIndexer: expected 3 axes, got [3, 8]",
       [&] {
         indexer(zeros({3, 8}));
       }},
      {"ShapeError: BlockIndexer: expected 3 axes, got [8]", [&] { indexer.select(zeros({8})); }},
      {"ValueError: BlockIndexer: expected x, got an undefined tensor",
       [&] { indexer.select(Tensor()); }},
      {wrong_heads + "[2, 9, 8], [1, 2, 9, 4] and [1, 2, 9, 4]",
       [&] {
         indexer.loss(cat({long_x, long_x}), heads, heads);
       }},
      {wrong_heads + "[1, 9, 8], [1, 2, 1, 4] and [1, 2, 9, 4]",
       [&] { indexer.loss(long_x, heads.narrow(2, 8, 1), heads); }},
      {wrong_heads + "[1, 9, 8], [1, 2, 9, 4] and [1, 2, 12, 4]",  // as many blocks
       [&] {
         indexer.loss(long_x, heads, randn({1, 2, 12, 4}));
       }},
      {"ValueError: block_probabilities: expected a block of at least 1, got 0",
       [&] { block_probabilities(q, q, 0); }},
  });
}
