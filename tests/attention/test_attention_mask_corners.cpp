// Masks at their corners: nothing to see, more queries than keys, the largest numbers.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Mask = AttentionMask;

constexpr int64_t kHuge = INT64_MAX;

std::vector<double> dense(const Mask& mask, int64_t queries, int64_t keys) {
  return mask.to_dense(queries, keys).to_vector<double>();
}

int64_t visible(const Mask& mask, int64_t queries, int64_t keys) {
  return mask_statistics(mask, queries, keys).visible_pairs;
}

// Masks whose tensors have no batches, heads, queries or keys.
std::vector<std::pair<Mask, MaskShape>> empty_masks(Device device) {
  const TensorOptions ints{.dtype = DType::int32, .device = device};
  const TensorOptions bools{.dtype = DType::boolean, .device = device};
  return {
      {Mask::key_lengths(zeros({0}, ints)), {0, 2, 3, 5}},
      {Mask::key_lengths(zeros({2}, ints)), {2, 2, 3, 0}},
      {Mask::key_lengths(zeros({2}, ints)), {2, 0, 3, 5}},
      {Mask::packed(zeros({1}, ints)), {2, 2, 0, 0}},
      {Mask(zeros({0, 1, 3, 5}, bools)), {0, 2, 3, 5}},
      {Mask(zeros({2, 0, 3, 5}, bools)), {2, 0, 3, 5}},
      {Mask(zeros({3, 0}, bools)), {2, 2, 3, 0}},
      {Mask(zeros({0, 5}, bools)), {2, 2, 0, 5}},
      {Mask::block_sparse(zeros({0, 1, 2, 3}, bools), 2), {0, 2, 3, 5}},
      {Mask::block_sparse(zeros({2, 0, 2, 3}, bools), 2), {2, 0, 3, 5}},
      {Mask::block_sparse(zeros({2, 0}, bools), 2), {2, 2, 3, 0}},
      {Mask::block_sparse(zeros({0, 3}, bools), 2), {2, 2, 0, 5}},
      {Mask::row_ranges(zeros({0, 3, 5}, ints), zeros({0, 3, 5}, ints)), {0, 3, 5, 4}},
      {Mask::row_ranges(zeros({2, 0, 5}, ints), zeros({2, 0, 5}, ints)), {2, 0, 5, 4}},
      {Mask::row_ranges(zeros({5}, ints), zeros({5}, ints)), {2, 3, 5, 0}},
      {Mask::row_ranges(zeros({0}, ints), zeros({0}, ints)), {2, 3, 0, 4}},
      {Mask::bigbird({.block = 2}), {2, 2, 3, 0}},
      {Mask::random_blocks(2, 1, 2), {2, 2, 3, 0}},
      {Mask::dilated_window(1, 1, 3), {2, 2, 3, 0}},
      {Mask::global({0, 1}), {2, 2, 3, 0}},
      {Mask::causal(), {2, 2, 3, 0}},
  };
}

void check_empty(Device device) {
  for (const auto& [mask, shape] : empty_masks(device)) {
    const MaskShape s = shape;
    for (const Mask& one : {mask, mask & Mask::sinks(2), mask | Mask::sinks(2)}) {
      CAPTURE(one.to_string());
      CHECK(one.to_dense(s).expand({s.batch, s.heads, s.queries, s.keys}).numel() == 0);
      CHECK(mask_statistics(one, s).visible_pairs == 0);
      const auto variable = [&](int64_t rows) {
        return ones({s.batch, s.heads, rows, 2}, {.device = device, .requires_grad = true});
      };
      const Tensor q = variable(s.queries), k = variable(s.keys), v = variable(s.keys);
      const Tensor bias = zeros({s.heads, 3}, {.device = device, .requires_grad = true});  // R = 1
      const AttentionWithLse y = attention_with_lse(q, k, v, {.mask = one, .relative_bias = bias});
      CHECK(all_equal(y.out, 0));
      CHECK(all_equal(y.lse, HUGE_VAL));
      const std::vector<Tensor> first =
          grad({y.out}, {q, k, v, bias}, {ones_like(y.out)}, {.create_graph = true});
      for (const Tensor& g : first) CHECK(all_equal(g, 0));
      (y.out * 2.0).sum().backward();
      for (const Tensor& x : {q, k, v, bias}) {
        CHECK(x.grad().shape() == x.shape());
        CHECK(all_equal(x.grad(), 0));
      }
    }
  }
}

/// out, dq, dk and dv of a causal call with three times as many queries as keys: two thirds of the
/// queries, whole blocks of them, see nothing. Under dropout.
std::vector<Tensor> few_keys(const std::vector<Tensor>& inputs, DType dtype, Device device) {
  std::vector<Tensor> x;
  for (const Tensor& input : inputs) x.push_back(input.to(dtype).to(device).requires_grad_());
  manual_seed(4);
  const Tensor y = attention(x[0], x[1], x[2], {.mask = Mask::causal(), .dropout = 0.25});
  std::vector<Tensor> all = grad({y}, {x[0], x[1], x[2]}, {x[3].detach()});
  all.insert(all.begin(), y.detach());
  return all;
}

void check_few_keys(Device device) {
  const AllowTf32 allow(true);
  constexpr int64_t keys = 64, queries = 3 * keys;
  for (const int64_t depth : {64, 128}) {
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
      manual_seed(9);
      std::vector<Tensor> inputs;
      for (const int64_t rows : {queries, keys, keys, queries}) {
        inputs.push_back(randn({2, 2, rows, depth}).to(dtype).to(DType::float64));
      }
      const std::vector<Tensor> expected = few_keys(inputs, DType::float64, kCPU);
      const std::vector<Tensor> found = few_keys(inputs, dtype, device);
      CHECK(all_equal(found[0].narrow(2, 0, queries - keys), 0));
      for (size_t i = 0; i < found.size(); ++i) {
        CAPTURE(name(dtype));
        check_rows(std::vector<std::string>({"out", "dq", "dk", "dv"})[i], found[i], expected[i],
                   dtype == DType::bfloat16 ? 0x1p-7 : 0x1p-9);
      }
    }
  }
}

}  // namespace

TEST_CASE("an unbounded dilated window reaches all keys when there are more queries than keys") {
  const std::vector<double> seen = dense(Mask::dilated_window(0, std::nullopt, 2), 9, 3);
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      const int64_t distance = j - (i - 6);
      CHECK(seen[static_cast<size_t>(i * 3 + j)] == (distance >= 0 && distance % 2 == 0));
    }
  }
  for (const int64_t dilation : {1, 2, 3, 7, 64, 100}) {
    for (const auto& [queries, keys] :
         std::vector<std::pair<int64_t, int64_t>>{{9, 3}, {300, 70}, {200, 1}, {70, 300}}) {
      for (const Mask& mask : {Mask::dilated_window(0, std::nullopt, dilation),
                               Mask::dilated_window(std::nullopt, 0, dilation),
                               Mask::dilated_window(std::nullopt, std::nullopt, dilation),
                               Mask::dilated_window(2, 250, dilation)}) {
        CAPTURE(mask.to_string());
        double pairs = 0;
        for (const double pair : dense(mask, queries, keys)) pairs += pair;
        CHECK(static_cast<double>(visible(mask, queries, keys)) == pairs);
      }
    }
  }
}

TEST_CASE_TEMPLATE("masks: empty masks show nothing, and attention gives zeros", On, Cpu, Cuda) {
  if (!missing(On::device)) check_empty(On::device);
}

TEST_CASE_TEMPLATE("masks: blocks of queries that see nothing, under dropout", On, Cpu, Cuda) {
  if (!missing(On::device)) check_few_keys(On::device);
}

TEST_CASE_TEMPLATE("masks: invalid lengths, cu_seqlens and row ranges are errors", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const Tensor x = randn({2, 1, 6, 4}, {.device = device});
  const auto data = [&](const std::vector<int32_t>& values) {
    return tensor(values, {static_cast<int64_t>(values.size())}, {.device = device});
  };
  const auto thrown = [&](const Mask& mask) {
    const std::string text =
        error_of<ValueError>(device, [&] { attention(x, x, x, {.mask = mask}); });
    return text.substr(0, text.find("; the mask is "));  // which a card does not know any more
  };
  const auto lengths = [&](int32_t last) { return thrown(Mask::key_lengths(data({3, last}))); };
  CHECK(lengths(6) == "nothing");
  CHECK(lengths(7) == "attention: expected key lengths in [0, 6], got 7 for batch 1");
  CHECK(lengths(-1) == "attention: expected key lengths in [0, 6], got -1 for batch 1");
  const auto packed = [&](const std::vector<int32_t>& starts) {
    return thrown(Mask::packed(data(starts)));
  };
  const std::string ascend = "attention: expected cu_seqlens that ascend from 0 to the length, 6, ";
  CHECK(packed({0, 2, 2, 6}) == "nothing");
  CHECK(packed({0, 4, 3, 6}) == ascend + "got 3 at 2");
  CHECK(packed({1, 6}) == ascend + "got 1 at 0");
  CHECK(packed({0, 5}) == ascend + "got 5 at 1");
  const Tensor first = data({0, 1, 2, 0, 0, 0}), past = data({1, 2, 9, 6, 6, 6});
  CHECK(thrown(Mask::row_ranges(first, past)) ==
        "attention: expected row ranges in [0, 6], got 9 for query 2");
}

TEST_CASE("the shape of a mask is that of its tensors, empty or not") {
  const TensorOptions ints{.dtype = DType::int32};
  const Mask ranges = Mask::row_ranges(zeros({0, 3, 5}, ints), zeros({0, 3, 5}, ints));
  CHECK(ranges.to_dense(5, 4).shape() == Shape{0, 3, 5, 4});
  CHECK(mask_statistics(ranges, 5, 4).all_blocks == 0);
  CHECK(Mask::key_lengths(zeros({0}, ints)).to_dense(5, 4).shape() == Shape{0, 1, 5, 4});
  const Mask tensor(zeros({2, 0, 5, 4}, {.dtype = DType::boolean}));
  CHECK(tensor.to_dense(5, 4).shape() == Shape{2, 0, 5, 4});
  expect_error<ShapeError>(
      "mask_picture: expected a mask of at least one batch and head, got [2, 0, 5, 4]",
      [&] { mask_picture(tensor, 5, 4); });
  expect_error<ShapeError>(
      "attention_mask: expected shapes that broadcast together, got [2, 1, 5] and [3, 1, 5]", [&] {
        Mask::row_ranges(zeros({2, 1, 5}, ints), zeros({3, 1, 5}, ints));
      });
}

TEST_CASE("a mask that does not fit an empty call is an error") {
  const Tensor q = ones({2, 1, 3, 4}), none = ones({2, 1, 0, 4});
  const Mask three = Mask::key_lengths(zeros({3}, {.dtype = DType::int32}));
  expect_error<ShapeError>(
      "attention_mask: expected a length for each of 2 batches, got [3]; the "
      "mask is key_lengths",
      [&] { attention(q, none, none, {.mask = three}); });
  const Mask longer = Mask::key_lengths(ones({2}, {.dtype = DType::int32}));
  expect_error<ValueError>(
      "attention: expected key lengths in [0, 0], got 1 for batch 0; the mask "
      "is key_lengths",
      [&] { attention(q, none, none, {.mask = longer}); });
}

TEST_CASE("masks take the largest integers") {
  const int64_t n = 70;
  const auto all = [&](const Mask& mask) { return visible(mask, n, n) == n * n; };
  CHECK(all(Mask::window(kHuge, kHuge)));
  CHECK(mask_picture(Mask(), 1, 2, kHuge) == "##\n");
  CHECK(all(Mask::symmetric_window(kHuge)));
  CHECK(all(Mask::dilated_window(kHuge, kHuge, 1)));
  CHECK(all(Mask::sinks(kHuge)));
  CHECK(all(Mask::random_blocks(1, 3, kHuge)));
  CHECK(all(Mask::random_blocks(kHuge, 3, 1)));
  CHECK(all(Mask::bigbird({.block = kHuge, .window = kHuge, .global = kHuge, .random = kHuge})));
  CHECK(all(Mask::bigbird({.block = 4, .window = kHuge, .global = 0, .random = 0})));
  CHECK(all(Mask::block_sparse(ones({1, 1}, {.dtype = DType::boolean}), kHuge)));
  CHECK(dense(Mask::causal_window(kHuge), n, n) == dense(Mask::causal(), n, n));
  CHECK(visible(Mask::global({kHuge}), n, n) == 0);
  // No other key is that far away.
  for (const int64_t step : {kHuge, kHuge - 1, kHuge / 2, int64_t{1} << 40}) {
    const Mask mask = Mask::dilated_window(kHuge, kHuge, step);
    CHECK(visible(mask, n, n) == n);
    CHECK(visible(mask, 200, n) == n);
    CHECK(visible(mask, n, 200) == n);
    CHECK(dense(mask, n, n) == dense(Mask::window(0, 0), n, n));
  }
  // What a cache keeps: everything.
  const auto reach = (Mask::causal_window(4) | Mask::sinks(kHuge)) & Mask::causal();
  REQUIRE(reach.causal_reach());
  CHECK(!reach.causal_reach()->recent);
  nn::KeyValueCache cache(reach);
  for (int i = 0; i < 9; ++i) cache.append(ones({1, 1, 1, 2}), ones({1, 1, 1, 2}));
  CHECK(cache.held() == 9);
}

TEST_CASE("negative and uncountable lengths of a mask are errors") {
  const std::string message =
      "attention_mask: expected batches, heads, queries and keys in [0, 2^40], got ";
  const Mask mask = Mask::causal();
  expect_error<ValueError>(message + "[1, 1, -1, 4]", [&] { mask_statistics(mask, -1, 4); });
  expect_error<ValueError>(message + "[1, 1, 4, -1]", [&] { mask.to_dense(4, -1); });
  expect_error<ValueError>(message + "[-2, 1, 4, 4]", [&] {
    mask_statistics(mask, {-2, 1, 4, 4});
  });
  expect_error<ValueError>(message + "[1, -2, 4, 4]", [&] { mask.to_dense({1, -2, 4, 4}); });
  expect_error<ValueError>(message + "[1, 1, 1, 9223372036854775807]",
                           [&] { mask_statistics(mask, 1, kHuge); });
  CHECK_THROWS_AS(mask_statistics(mask, int64_t{1} << 40, 4), ValueError);
  CHECK_THROWS_AS(mask.to_dense(int64_t{1} << 40, int64_t{1} << 40), Error);
  expect_error<ValueError>("attention_mask: expected counts below 2^63, got more", [&] {
    mask_statistics(mask, {int64_t{1} << 40, int64_t{1} << 22, 4, 4});
  });
}

TEST_CASE("a ragged last block can be full") {
  for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{
           {64, 64}, {64, 70}, {70, 64}, {130, 130}, {1, 1}, {3, 200}}) {
    const MaskStatistics found = mask_statistics(Mask(), queries, keys);
    CHECK(found.full_blocks == found.all_blocks);
    CHECK(found.listed_blocks == found.all_blocks);
    CHECK(found.visible_pairs == queries * keys);
  }
  CHECK(mask_statistics(Mask::causal(), 130, 130).full_blocks == 3);  // below the diagonal
}

TEST_CASE("the pairs of a mask over millions of tokens are counted, without a list of blocks") {
  clear_mask_cache();
  const int64_t before = memory_stats(kCPU).masks;
  const int64_t n = int64_t{1} << 24, blocks = n / 64;
  const MaskStatistics causal = mask_statistics(Mask::causal(), n, n);
  CHECK(causal.visible_pairs == n * (n + 1) / 2);
  CHECK(causal.listed_blocks == blocks * (blocks + 1) / 2);
  CHECK(causal.full_blocks == blocks * (blocks - 1) / 2);
  CHECK(causal.all_blocks == blocks * blocks);
  CHECK(visible(Mask::causal() & Mask::global({0, n - 1}), n, n) == 2 * n - 1);
  CHECK(visible(Mask(), n, 5) == 5 * n);
  CHECK(memory_stats(kCPU).masks == before);
  expect_error<ValueError>("attention_mask: expected counts below 2^63, got more",
                           [] { mask_statistics(Mask(), int64_t{1} << 36, int64_t{1} << 40); });
}

TEST_CASE("counts of many blocks a row are those of the matrix") {
  constexpr int64_t kTokens = 1024, kBlocks = 16;
  for (const std::string& mask : std::vector<std::string>{
           "causal", "dense", "causal_window:300", "window:70,500", "dilated_window:9,9,50",
           "global:0,5,700 | window:3,3", "sinks:100 & causal", "bigbird:48,3,2,3",
           "neighborhood:2,32,32,7,7", "longformer:80,0", "random_blocks:3,1 | sinks:130"}) {
    CAPTURE(mask);
    const Mask one = Mask::parse(mask);
    const MaskStatistics found = mask_statistics(one, kTokens, kTokens);
    const Tensor blocks = one.to_dense(kTokens, kTokens).view({kBlocks, 64, kBlocks, 64});
    const auto count = [](const Tensor& x) { return x.to(DType::int64).sum().item<int64_t>(); };
    CHECK(found.visible_pairs == count(blocks));
    CHECK(found.listed_blocks == count(any(blocks, {1, 3})));
    CHECK(found.full_blocks == count(all(blocks, {1, 3})));
    CHECK(found.all_blocks == kBlocks * kBlocks);
  }
}

TEST_CASE("a mask is compiled once per number of batches and heads that it tells apart") {
  const auto bytes_of = [](const Mask& mask, int64_t heads) {
    clear_mask_cache();
    const Tensor x = zeros({2, heads, 100, 4}, {.device = kCPU});
    attention(x, x, x, {.mask = mask});
    return memory_stats(kCPU).masks;
  };
  CHECK(bytes_of(Mask::dilated_window(5, 5, 3), 1) == bytes_of(Mask::dilated_window(5, 5, 3), 8));
  // One mask for calls of two and of three batches.
  const Mask own =
      Mask::predicate([](const MaskIndex& at) { return at.key == at.batch; }, {.per_batch = true});
  const Tensor v = arange(0, 5, 1, {.dtype = DType::float64, .device = kCPU}).view({1, 1, 5, 1});
  for (const int64_t batch : {2, 3, 2, 3}) {
    const Tensor x = zeros({batch, 1, 5, 1}, v.options());
    const Tensor y = attention(x, x, v.expand({batch, 1, 5, 1}), {.mask = own});
    for (int64_t b = 0; b < batch; ++b) CHECK(all_equal(y[b], static_cast<double>(b)));
  }
}

TEST_CASE("data that is joined to a pattern is not compiled, wherever it stands") {
  const Tensor x = zeros({2, 1, 100, 4}, {.device = kCPU});
  std::vector<Mask> alive;  // what a mask's data compiles to goes with the mask
  const auto masks = [&](int32_t length) {
    const Mask lengths =
        Mask::key_lengths(full({2}, length, {.dtype = DType::int32, .device = kCPU}));
    alive.push_back(Mask::causal() & (Mask::window(40, 40) & lengths));
    attention(x, x, x, {.mask = alive.back()});
    alive.push_back((lengths & Mask::causal()) & Mask::window(40, 40));
    attention(x, x, x, {.mask = alive.back()});
    return memory_stats(kCPU).masks;
  };
  clear_mask_cache();
  const int64_t one = masks(50);
  CHECK(masks(60) == one);
}
