// The choice of blocks of keys against its definition in float64.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/plain_selection.h"
#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/op_inputs.h"
#include "../support/random_numbers.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Array drawn(RandomNumbers& random, const Shape& shape) {
  return generate(shape,
                  [&](const Index&) { return static_cast<float>(4 * random.uniform() - 2); });
}

struct Call {
  Array q, k;
  SelectBlocksOptions options;
};

Call random_call(RandomNumbers& random) {
  const auto between = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random.below(static_cast<uint64_t>(high - low + 1)));
  };
  const int64_t batch = between(1, 2), kv_heads = between(1, 2), group = between(1, 3);
  const int64_t keys = between(1, 90), depth = random.below(8) == 0 ? 133 : between(1, 20);
  const int64_t queries = random.below(6) == 0 ? keys + 3 : between(1, std::min<int64_t>(keys, 40));
  SelectBlocksOptions options{
      .block = between(1, 7),
      .score = random.below(2) == 0 ? BlockScore::logits : BlockScore::probabilities,
      .causal = random.below(4) > 0,
      .queries_per_row = random.below(2) == 0 ? 1 : between(2, 9),
      .first = between(0, 2),
      .own = random.below(3) > 0,
      .neighbours = between(0, 2)};
  if (random.below(3) == 0) options.scale = 2.5;
  const int64_t own =
      options.own ? (options.queries_per_row - 1 + options.block - 1) / options.block + 1 : 0;
  options.count = std::max<int64_t>(1, options.first + own + options.neighbours + between(0, 6));
  return {drawn(random, {batch, kv_heads * group, queries, depth}),
          drawn(random, {batch, kv_heads, keys, depth}), options};
}

void check_random_calls(Device device) {
  RandomNumbers random(random_seed(3));
  const uint64_t count = random_count(300, 3000, 6);
  uint64_t compared = 0;
  for (uint64_t n = 0; n < count; ++n) {
    const Call call = random_call(random);
    CAPTURE(n);
    CAPTURE(to_string(call.q.shape));
    CAPTURE(to_string(call.k.shape));
    CAPTURE(call.options.block);
    PlainSelection plain(call.q, call.k, call.options);
    const Array expected = plain();
    for (const DType dtype : {DType::float64, DType::float32}) {
      if (plain.gap() < (dtype == DType::float64 ? 1e-12 : 1e-5)) continue;
      ++compared;
      const Tensor index = select_blocks(to_tensor(call.q, dtype, device),
                                         to_tensor(call.k, dtype, device), call.options);
      CHECK(index.dtype() == DType::int32);
      CHECK(to_array(index).shape == expected.shape);
      CHECK(index.to_vector<double>() == expected.values);
    }
  }
  CHECK(2 * compared > 3 * count / 2);
}

// Halves hold small whole numbers and their products exactly.
void check_halves(Device device) {
  RandomNumbers random(4);
  const auto whole = [&](const Shape& shape) {
    return generate(shape, [&](const Index&) { return double(random.below(9)) - 4; });
  };
  for (const BlockScore score : {BlockScore::logits, BlockScore::probabilities}) {
    const Array q = whole({2, 4, 50, 24}), k = whole({2, 2, 67, 24});
    const SelectBlocksOptions options{.block = 4, .count = 5, .score = score, .scale = 0.01};
    const Tensor expected = select_blocks(to_tensor(q, DType::float64, kCPU),
                                          to_tensor(k, DType::float64, kCPU), options);
    for (const DType dtype : {DType::float16, DType::bfloat16}) {
      const Tensor index =
          select_blocks(to_tensor(q, dtype, device), to_tensor(k, dtype, device), options);
      CHECK(all_same(index.to(kCPU), expected));
    }
  }
}

// A row that differs from the choice in float64 has exchanged blocks of nearly the same score.
void check_near(const Array& index, PlainSelection& plain, double rounding) {
  const Array expected = plain();
  REQUIRE(index.shape == expected.shape);
  const int64_t count = index.shape[3];
  int64_t rows = 0, different = 0;
  for_each_index({index.shape[0], index.shape[1], index.shape[2]}, [&](const Index& at) {
    const auto row = [&](const Array& of) {
      std::vector<int64_t> blocks;
      for (int64_t i = 0; i < count; ++i) {
        blocks.push_back(static_cast<int64_t>(of[{at[0], at[1], at[2], i}]));
      }
      return blocks;
    };
    const std::vector<int64_t> got = row(index), wanted = row(expected);
    ++rows;
    if (got == wanted) return;
    ++different;
    std::vector<int64_t> more, fewer;
    const auto minus = [](const auto& a, const auto& b, auto& rest) {
      std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
    };
    REQUIRE(std::is_sorted(got.begin(), got.end()));
    minus(got, wanted, more), minus(wanted, got, fewer);
    REQUIRE(more.size() == fewer.size());
    const std::vector<double> scores = plain.scores(at);
    for (const int64_t a : more) {
      for (const int64_t b : fewer) {
        const double x = scores.at(static_cast<size_t>(a)), y = scores.at(static_cast<size_t>(b));
        CHECK(std::abs(x - y) <= rounding + 1e-4 * std::abs(y));
      }
    }
  });
  CHECK(different <= rows / 50 + 1);
}

// Shapes of kernels for tensor cores: rows of one line to several products, whole and partial
// steps of features and of blocks.
void check_half_products(Device device) {
  struct Shapes {
    int64_t group, depth, blocks, count, queries_per_row;
  };
  const Shapes all[] = {{1, 64, 75, 8, 1},    {1, 128, 33, 5, 1},  {16, 64, 75, 16, 1},
                        {16, 128, 40, 16, 1}, {12, 72, 64, 9, 1},  {8, 64, 70, 32, 1},
                        {3, 24, 65, 7, 1},    {2, 256, 50, 20, 1}, {2, 32, 50, 40, 1},
                        {5, 136, 41, 12, 5},  {4, 8, 97, 11, 9},   {4, 20, 50, 6, 1},
                        {1, 40, 300, 24, 3}};
  RandomNumbers random(random_seed(10));
  for (const BlockScore score : {BlockScore::logits, BlockScore::probabilities}) {
    for (const Shapes& s : all) {
      if (short_tests() && s.blocks > 70) continue;
      CAPTURE(s.group);
      CAPTURE(s.depth);
      const int64_t block = 2, keys = s.blocks * block - 1, kv = s.group > 5 ? 1 : 2;
      SelectBlocksOptions options{.block = block,
                                  .count = s.count,
                                  .score = score,
                                  .causal = s.group != 3,
                                  .queries_per_row = s.queries_per_row,
                                  .first = 1,
                                  .own = s.group != 2,
                                  .neighbours = 1};
      const DType dtype = random.below(2) == 0 ? DType::float16 : DType::bfloat16;
      const auto rounded = [&](const Shape& shape) {
        return to_tensor(drawn(random, shape), dtype, device);
      };
      const Tensor q = rounded({2, 41, kv * s.group, s.depth}).transpose(1, 2);
      const Tensor k = rounded({2, kv, keys, s.depth});
      options.pooled_keys = rounded({2, kv, s.blocks, s.depth});
      const Tensor index = select_blocks(q, k, options);
      CHECK(all_same(select_blocks(q.contiguous(), k, options), index));
      PlainSelection plain(to_array(q), to_array(k), options, to_array(options.pooled_keys));
      check_near(to_array(index), plain, score == BlockScore::logits ? 1e-5 : 1e-8);
    }
  }
}

// Equal keys have equal scores wherever they are: the lower blocks are chosen.
void check_ties(Device device, DType dtype) {
  manual_seed(5);
  const Tensor q = randn({1, 2, 9, 24}).to(dtype).to(device);
  const Tensor k = randn({1, 1, 1, 24}).to(dtype).to(device).expand({1, 1, 700, 24});
  for (const BlockScore score : {BlockScore::logits, BlockScore::probabilities}) {
    const SelectBlocksOptions options{
        .block = 7, .count = 3, .score = score, .causal = false, .own = false};
    const std::vector<int64_t> index = select_blocks(q, k, options).to_vector<int64_t>();
    for (size_t i = 0; i < index.size(); ++i) CHECK(index[i] == static_cast<int64_t>(i % 3));
  }
  // Two of the keys are better than the others.
  Tensor pooled = zeros({1, 1, 100, 24}, {.dtype = dtype, .device = device});
  for (const int64_t block : {40, 97}) pooled.select(2, block).fill_(1);
  const SelectBlocksOptions options{
      .block = 7, .count = 4, .causal = false, .own = false, .pooled_keys = pooled};
  const Tensor index = select_blocks(ones_like(q), k, options);
  CHECK(index.select(1, 0).select(1, 0).to_vector<int64_t>() == std::vector<int64_t>{0, 1, 40, 97});
}

void check_nan(Device device, DType dtype) {
  manual_seed(6);
  const TensorOptions of{.dtype = dtype, .device = device};
  const Tensor q = randn({1, 1, 1, 8}, of);
  Tensor pooled = zeros({1, 1, 40, 8}, of);
  const auto choose = [&](BlockScore score, int64_t count, const Tensor& query) {
    const SelectBlocksOptions options{.block = 2,
                                      .count = count,
                                      .score = score,
                                      .causal = false,
                                      .own = false,
                                      .pooled_keys = pooled};
    return select_blocks(query, zeros({1, 1, 80, 8}, of), options).to_vector<int64_t>();
  };
  pooled.narrow(2, 0, 2).fill_(kNaN);
  pooled.select(2, 39).fill_(kNaN);
  CHECK(choose(BlockScore::logits, 3, q) == std::vector<int64_t>{2, 3, 4});
  // Of 40 blocks, 37 have a score; the lowest of the others follows.
  std::vector<int64_t> most;
  for (int64_t b = 0; b < 39; ++b) {
    if (b != 1) most.push_back(b);
  }
  CHECK(choose(BlockScore::logits, 38, q) == most);
  // Softmax makes all probabilities NaN, and all blocks equal.
  CHECK(choose(BlockScore::probabilities, 2, q) == std::vector<int64_t>{0, 1});
  CHECK(choose(BlockScore::logits, 2, full({1, 1, 1, 8}, kNaN, of)) == std::vector<int64_t>{0, 1});
}

void check_forced(Device device) {
  // Block c has the key -c: the first blocks are the best.
  const Tensor k = arange(0, -12, -1, {.dtype = DType::float32}).to(device).view({1, 1, 12, 1});
  const Tensor q = ones({1, 1, 3, 1}, {.device = device});  // at 9, 10, 11
  const auto rows = [&](const SelectBlocksOptions& options) {
    return select_blocks(q, k, options).to_vector<int64_t>();
  };
  using Row = std::vector<int64_t>;
  CHECK(rows({.block = 1, .count = 3}) == Row{0, 1, 9, 0, 1, 10, 0, 1, 11});
  CHECK(rows({.block = 1, .count = 3, .own = false}) == Row{0, 1, 2, 0, 1, 2, 0, 1, 2});
  CHECK(rows({.block = 1, .count = 4, .neighbours = 2}) ==
        Row{0, 7, 8, 9, 0, 8, 9, 10, 0, 9, 10, 11});
  CHECK(rows({.block = 2, .count = 4, .first = 2, .neighbours = 1}) ==
        Row{0, 1, 3, 4, 0, 1, 4, 5, 0, 1, 4, 5});
  // Own blocks of all queries of a row.
  CHECK(rows({.block = 1, .count = 5, .queries_per_row = 2}) ==
        Row{0, 1, 2, 9, 10, 0, 1, 2, 3, 11});
  // All blocks, then -1. Block 3 of 4 keys each starts after the last key.
  CHECK(rows({.block = 4, .count = 5}) == Row{0, 1, 2, -1, -1, 0, 1, 2, -1, -1, 0, 1, 2, -1, -1});
  // Queries before the first key see nothing.
  const Tensor few = k.narrow(2, 0, 2);
  CHECK(select_blocks(q, few, {.block = 1, .count = 2}).to_vector<int64_t>() ==
        Row{-1, -1, 0, -1, 0, 1});
  CHECK(select_blocks(q, few, {.block = 1, .count = 2, .causal = false}).to_vector<int64_t>() ==
        Row{0, 1, 0, 1, 0, 1});
}

// Lists that do not fit the shared memory of a card.
void check_long_lists(Device device) {
  RandomNumbers random(7);
  const Array q = drawn(random, {1, 1, 12, 3}), k = drawn(random, {1, 1, 1500, 3});
  const SelectBlocksOptions options{.block = 1, .count = 900, .first = 2, .neighbours = 3};
  PlainSelection plain(q, k, options);
  CHECK(select_blocks(to_tensor(q, DType::float64, device), to_tensor(k, DType::float64, device),
                      options)
            .to_vector<double>() == plain().values);
}

// Pooled keys and the log-sum-exp of the probabilities may be given; views of any strides.
void check_given(Device device) {
  manual_seed(8);
  for (const bool causal : {true, false}) {
    const Tensor q = randn({2, 30, 4, 16}, {.device = device}).transpose(1, 2);
    const Tensor k = randn({2, 43, 2, 16}, {.device = device}).transpose(1, 2);
    SelectBlocksOptions options{
        .block = 5, .count = 4, .score = BlockScore::probabilities, .causal = causal};
    const Tensor expected = select_blocks(q, k, options);
    CHECK(all_same(select_blocks(q.contiguous(), k.contiguous(), options), expected));
    options.pooled_keys = block_means(k, 5);
    CHECK(all_same(select_blocks(q, zeros_like(k), options), expected));
    const Tensor seen = causal ? options.pooled_keys.narrow(2, 0, 8) : options.pooled_keys;
    const AttentionMask mask = causal ? ended_blocks(30, 43, 5, device) : AttentionMask();
    options.lse = attention_with_lse(q, seen, seen, {.mask = mask}).lse;
    options.pooled_keys = seen;
    CHECK(all_same(select_blocks(q, k, options), expected));
  }
}

void check_memory(Device device) {
  constexpr int64_t kTokens = 4096, kBlock = 4, kChosen = 8;
  const Tensor q = randn({1, 1, kTokens, 8}, {.device = device});
  for (const BlockScore score : {BlockScore::logits, BlockScore::probabilities}) {
    const SelectBlocksOptions options{.block = kBlock, .count = kChosen, .score = score};
    select_blocks(q, q, options);
    reset_peak_memory(device);
    const int64_t before = memory_stats(device).current;
    select_blocks(q, q, options);
    // The scores of all queries and blocks would take 16 MiB.
    CHECK(memory_stats(device).peak - before < 2 << 20);
  }
}

void check_bits(Device device) {
  manual_seed(9);
  const Tensor q = randn({2, 4, 200, 32}, {.device = device});
  const Tensor k = randn({2, 2, 200, 32}, {.device = device}).requires_grad_();
  const SelectBlocksOptions options{.block = 4, .count = 6, .score = BlockScore::probabilities};
  const int threads = num_threads();
  const Tensor first = select_blocks(q, k, options);
  CHECK(!first.requires_grad());
  set_num_threads(1);
  CHECK(all_same(select_blocks(q, k, options), first));
  set_num_threads(threads);
  // A new query chooses what it chose among all.
  const SelectBlocksOptions alone{.block = 4, .count = 6};
  for (const DType dtype : {DType::float32, DType::float16}) {
    const Tensor queries = q.to(dtype), keys = k.to(dtype);
    const Tensor whole = select_blocks(queries, keys, alone);
    const Tensor last = select_blocks(queries.narrow(2, 120, 1), keys.narrow(2, 0, 121), alone);
    CHECK(all_same(last, whole.narrow(2, 120, 1)));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("select blocks: random calls", On, Cpu, Cuda) {
  if (!missing(On::device)) check_random_calls(On::device);
}
TEST_CASE_TEMPLATE("select blocks: halves", On, Cpu, Cuda) {
  if (!missing(On::device)) check_halves(On::device);
}
TEST_CASE_TEMPLATE("select blocks: products of halves", On, Cpu, Cuda) {
  if (!missing(On::device)) check_half_products(On::device);
}
TEST_CASE_TEMPLATE("select blocks: ties", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : {DType::float32, DType::bfloat16}) check_ties(On::device, dtype);
}
TEST_CASE_TEMPLATE("select blocks: NaN", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType dtype : {DType::float32, DType::bfloat16}) check_nan(On::device, dtype);
}
TEST_CASE_TEMPLATE("select blocks: forced blocks, and fewer than asked for", On, Cpu, Cuda) {
  if (!missing(On::device)) check_forced(On::device);
}
TEST_CASE_TEMPLATE("select blocks: long lists", On, Cpu, Cuda) {
  if (!missing(On::device)) check_long_lists(On::device);
}
TEST_CASE_TEMPLATE("select blocks: given keys and sums", On, Cpu, Cuda) {
  if (!missing(On::device)) check_given(On::device);
}
TEST_CASE_TEMPLATE("select blocks: memory", On, Cpu, Cuda) {
  if (!missing(On::device)) check_memory(On::device);
}
TEST_CASE_TEMPLATE("select blocks: the same bits", On, Cpu, Cuda) {
  if (!missing(On::device)) check_bits(On::device);
}

TEST_CASE("select blocks: empty calls") {
  for (const BlockScore score : {BlockScore::logits, BlockScore::probabilities}) {
    const SelectBlocksOptions options{.block = 2, .count = 3, .score = score};
    CHECK(select_blocks(zeros({1, 2, 0, 4}), zeros({1, 1, 5, 4}), options).numel() == 0);
    CHECK(select_blocks(zeros({0, 2, 3, 4}), zeros({0, 1, 5, 4}), options).numel() == 0);
    CHECK(all_equal(select_blocks(zeros({1, 2, 3, 4}), zeros({1, 1, 0, 4}), options), -1));
    // No block has ended at the first query.
    CHECK(all_equal(
        select_blocks(zeros({1, 2, 1, 4}), zeros({1, 1, 1, 4}), options).narrow(3, 0, 1), 0));
  }
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const Tensor x = zeros({1, 1, 3, 4});
  CHECK(select_blocks(x, x, {.block = kMost, .count = 2, .queries_per_row = kMost})
            .to_vector<int64_t>() == std::vector<int64_t>{0, -1});
}

TEST_CASE("block means and ended blocks") {
  const Tensor x = randn({2, 2, 7, 3}, kDoubles);
  const Tensor means = block_means(x, 3);
  REQUIRE(means.shape() == Shape{2, 2, 3, 3});
  CHECK(largest_difference(means.select(2, 1), x.narrow(2, 3, 3).mean({2})) < 1e-15);
  CHECK(all_same(means.select(2, 2), x.select(2, 6)));
  CHECK(block_means(x, 7).shape() == Shape{2, 2, 1, 3});
  CHECK(block_means(x.narrow(2, 0, 0), 7).shape() == Shape{2, 2, 0, 3});
  // Queries at 1 to 5 of blocks of 2 keys.
  const Tensor dense = ended_blocks(5, 6, 2).to_dense(5, 3);
  CHECK(dense.to_vector<int64_t>() ==
        std::vector<int64_t>{1, 0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1});
}

TEST_CASE("select blocks: wrong calls") {
  const Tensor q = zeros({1, 4, 6, 8}), k = zeros({1, 2, 9, 8});
  const std::string op = ": select_blocks: expected ";
  const auto wrong = [&](const SelectBlocksOptions& options) {
    return [=] { select_blocks(q, k, options); };
  };
  expect_errors({
      {"ShapeError" + op +
           "q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, D_v], H a multiple of H_kv, "
           "got [1, 4, 6, 8], [1, 3, 9, 8] and [1, 3, 9, 8]",
       [&] {
         select_blocks(q, zeros({1, 3, 9, 8}));
       }},
      {"DTypeError" + op + "a floating dtype, got int64",
       [&] {
         select_blocks(zeros({1, 1, 1, 1}, kInts), zeros({1, 1, 1, 1}, kInts));
       }},
      {"DTypeError" + op + "tensors of one dtype, got float32 and float64",
       [&] { select_blocks(q, k.to(DType::float64)); }},
      {"ValueError" + op + "a tensor, got an undefined tensor", [&] { select_blocks(q, {}); }},
      {"ValueError" + op + "a block of at least 1, got 0", wrong({.block = 0})},
      {"ValueError" + op + "a count of at least 1, got 0", wrong({.count = 0})},
      {"ValueError" + op + "a number of queries per row of at least 1, got 0",
       wrong({.queries_per_row = 0})},
      {"ValueError" + op + "a number of first blocks of at least 0, got -1", wrong({.first = -1})},
      {"ValueError" + op + "a number of neighbours of at least 0, got -2",
       wrong({.neighbours = -2})},
      {"ValueError" + op + "a count for 1 first, 1 own and 2 neighbouring blocks, got 3",
       wrong({.count = 3, .first = 1, .neighbours = 2})},
      {"ValueError" + op + "a count for 0 first, 3 own and 0 neighbouring blocks, got 2",
       wrong({.block = 4, .count = 2, .queries_per_row = 9})},
      {"ValueError" + op + "a finite scale, got inf",
       wrong({.scale = std::numeric_limits<double>::infinity()})},
      {"ShapeError" + op + "pooled keys of shape [1, 2, 3, 8], got [1, 2, 4, 8]",
       wrong({.block = 4, .count = 2, .pooled_keys = zeros({1, 2, 4, 8})})},
      {"DTypeError" + op + "tensors of one dtype, got float32 and float64",
       wrong({.block = 4, .count = 2, .pooled_keys = zeros({1, 2, 3, 8}, kDoubles)})},
      {"ValueError" + op + "no lse for logits, got [1, 4, 6]", wrong({.lse = zeros({1, 4, 6})})},
      {"ShapeError" + op + "shape [1, 4, 6], got [1, 4, 5]",
       wrong({.score = BlockScore::probabilities, .lse = zeros({1, 4, 5})})},
      {"DTypeError" + op + "an lse of float32, got float64",
       wrong({.score = BlockScore::probabilities, .lse = zeros({1, 4, 6}, kDoubles)})},
      {"ValueError: block_means: expected a block of at least 1, got 0",
       [&] { block_means(k, 0); }},
      {"ShapeError: block_means: expected 4 axes, got [3]", [&] { block_means(zeros({3}), 2); }},
      {"ValueError: ended_blocks: expected a block of at least 1, got 0",
       [&] { ended_blocks(1, 1, 0); }},
  });
}
