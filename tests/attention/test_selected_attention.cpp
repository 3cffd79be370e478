// Attention over blocks that data selects, against plain loops.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/attention_run.h"
#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/op_inputs.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Mask = AttentionMask;

struct Sizes {
  int64_t batch, heads, key_heads, queries, keys, depth, width;
};

struct Selection {
  int64_t batch, heads, rows, width, block, queries_per_row;
  std::vector<int32_t> index{};

  Mask mask(Device device) const {
    return Mask::selected(tensor(index, {batch, heads, rows, width}, {.device = device}), block,
                          queries_per_row);
  }
  bool sees(const Sizes& s, const MaskIndex& at) const {
    const int64_t b = batch == 1 ? 0 : at.batch, h = at.head * heads / s.heads;
    const auto row = index.begin() + ((b * heads + h) * rows + at.query / queries_per_row) * width;
    return std::find(row, row + width, at.key / block) != row + width;
  }
};

int64_t below(RandomNumbers& random, int64_t count) {
  return static_cast<int64_t>(random.below(static_cast<uint64_t>(count)));
}

Selection random_selection(RandomNumbers& random, const Sizes& s, int64_t block, int64_t width,
                           int64_t heads, int64_t queries_per_row = 1) {
  Selection x{below(random, 2) == 0 ? 1 : s.batch,
              heads,
              (s.queries + queries_per_row - 1) / queries_per_row,
              width,
              block,
              queries_per_row};
  const int64_t blocks = (s.keys + block - 1) / block;
  for (int64_t n = 0; n < x.batch * heads * x.rows * width; ++n) {
    x.index.push_back(static_cast<int32_t>(below(random, blocks + 1)) - 1);
  }
  return x;
}

Array random_array(RandomNumbers& random, const Shape& shape) {
  return generate(shape, [&](const Index&) { return 2 * random.uniform() - 1; });
}

AttentionProblem random_problem(RandomNumbers& random, const Sizes& s) {
  AttentionProblem p;
  p.q = random_array(random, {s.batch, s.heads, s.queries, s.depth});
  p.k = random_array(random, {s.batch, s.key_heads, s.keys, s.depth});
  p.v = random_array(random, {s.batch, s.key_heads, s.keys, s.width});
  p.g = random_array(random, {s.batch, s.heads, s.queries, s.width});
  p.g_lse = random_array(random, {s.batch, s.heads, s.queries});
  p.scale = 1 / std::sqrt(static_cast<double>(s.depth));
  return p;
}

// The error relative to the expected values, which count as `least` in the mean if they are
// smaller.
double distance(const Tensor& found, const Array& expected, double least) {
  const std::vector<double> x = found.to_vector<double>();
  REQUIRE(x.size() == expected.values.size());
  double difference = 0, size = 1e-9;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == expected.values[i]) continue;  // also infinities
    difference += (x[i] - expected.values[i]) * (x[i] - expected.values[i]);
    size += expected.values[i] * expected.values[i];
  }
  return std::sqrt(difference / std::max(size, double(x.size()) * least * least));
}

void expect_near(const AttentionResults& found, const AttentionAnswer& answer, double limit,
                 double least = 0) {
  CHECK(distance(found.out, answer.out, least) < limit);
  CHECK(distance(found.lse, answer.lse, least) < limit);
  CHECK(distance(found.dq, answer.dq, least) < limit);
  CHECK(distance(found.dk, answer.dk, least) < limit);
  CHECK(distance(found.dv, answer.dv, least) < limit);
}

double limit_of(DType half) { return half == DType::bfloat16 ? 0.01 : 0.0015; }

void round_inputs(AttentionProblem& problem, DType half) {
  for (Array* t : {&problem.q, &problem.k, &problem.v, &problem.g}) {
    for (double& value : t->values) value = rounded(value, half);
  }
}

// A selection, with windows and data joined to it.
struct Joined {
  Mask mask;
  Sees sees;
};
Joined joined(RandomNumbers& random, const Selection& x, const Sizes& s, Device device) {
  Joined all{x.mask(device), [x, s](const MaskIndex& at) { return x.sees(s, at); }};
  const auto join = [&](const Mask& mask, const Sees& sees) {
    all = {all.mask & mask,
           [a = all.sees, sees](const MaskIndex& at) { return a(at) && sees(at); }};
  };
  const int64_t offset = s.keys - s.queries;
  if (below(random, 2) == 0) {
    join(Mask::causal(), [=](const MaskIndex& at) { return at.key <= at.query + offset; });
  }
  if (below(random, 3) == 0) {
    const int64_t left = below(random, s.keys + 1), right = below(random, 20);
    join(Mask::window(left, right), [=](const MaskIndex& at) {
      return at.query + offset - left <= at.key && at.key <= at.query + offset + right;
    });
  }
  if (below(random, 3) == 0) {
    std::vector<int32_t> lengths;
    for (int64_t b = 0; b < s.batch; ++b) {
      lengths.push_back(static_cast<int32_t>(below(random, s.keys + 1)));
    }
    join(Mask::key_lengths(tensor(lengths, {s.batch}, {.device = device})),
         [=](const MaskIndex& at) { return at.key < lengths[static_cast<size_t>(at.batch)]; });
  }
  return all;
}

void check_values(Device device) {
  RandomNumbers random(71);
  for (uint64_t round = 0; round < random_count(300, 3000, 40); ++round) {
    const int64_t key_heads = 1 + below(random, 2), group = 1 + below(random, 3);
    const Sizes s{1 + below(random, 2), key_heads * group,      key_heads,
                  below(random, 80),    1 + below(random, 300), 1 + below(random, 9),
                  1 + below(random, 9)};
    const std::vector<int64_t> heads{1, s.key_heads, s.heads};
    const std::vector<int64_t> blocks{1, 7, 32, 64, 257, 1000};
    const Selection x = random_selection(random, s, blocks[random.below(6)], below(random, 6),
                                         heads[random.below(3)], 1 + below(random, 3));
    AttentionProblem problem = random_problem(random, s);
    const Joined all = joined(random, x, s, device);
    problem.sees = all.sees;
    CAPTURE(round);
    CAPTURE(all.mask.to_string());
    const AttentionAnswer answer = solve(problem);
    expect_near(run_attention(problem, all.mask, DType::float64, device), answer, 1e-11);
    expect_near(run_attention(problem, all.mask, DType::float32, device), answer, 2e-5);
    const DType half = round % 2 == 0 ? DType::bfloat16 : DType::float16;
    round_inputs(problem, half);
    expect_near(run_attention(problem, all.mask, half, device), solve(problem), limit_of(half),
                0.3);
  }
}

// Shapes of tensor cores' kernels, and their neighbours.
void check_halves(Device device) {
  RandomNumbers random(72);
  const std::vector<Sizes> all{{1, 32, 2, 150, 150, 64, 64}, {2, 16, 1, 70, 333, 128, 128},
                               {1, 8, 1, 90, 200, 64, 64},   {1, 4, 4, 100, 130, 128, 128},
                               {1, 16, 1, 40, 100, 80, 64},  {1, 64, 4, 33, 65, 64, 64},
                               {1, 4, 2, 700, 1300, 64, 64}, {1, 2, 2, 700, 1300, 128, 128}};
  for (const Sizes& s : all) {
    for (const int64_t block : {64, 16, 128, 500, 520}) {
      if (short_tests() && block != 64 && block < 500) continue;
      if ((s.keys > 1000) != (block >= 500)) continue;
      if (short_tests() && block >= 500 && device.is_cpu()) continue;
      for (const DType dtype : {DType::bfloat16, DType::float16}) {
        const Selection x =
            random_selection(random, s, block, 1 + below(random, 5),
                             below(random, 2) == 0 ? s.key_heads : s.heads, 1 + below(random, 2));
        AttentionProblem problem = random_problem(random, s);
        round_inputs(problem, dtype);
        const Joined masked = joined(random, x, s, device);
        problem.sees = masked.sees;
        CAPTURE(masked.mask.to_string());
        CAPTURE(s.depth);
        expect_near(run_attention(problem, masked.mask, dtype, device), solve(problem),
                    limit_of(dtype));
      }
    }
  }
}

// Random shapes of the same kernels.
void check_random_halves(Device device) {
  for (uint64_t round = 0; round < random_count(10, 3000, 5); ++round) {
    const uint64_t seed = random_seed(1) + round;
    RandomNumbers random(seed);
    const auto one_of = [&](const std::vector<int64_t>& all) {
      return all[random.below(all.size())];
    };
    const int64_t key_heads = 1 + below(random, 2), group = one_of({1, 2, 4, 8, 16}),
                  depth = one_of({64, 128});
    const Sizes s{1 + below(random, 2),
                  key_heads * group,
                  key_heads,
                  1 + below(random, 100),
                  1 + below(random, 300),
                  depth,
                  depth};
    const Selection x =
        random_selection(random, s, one_of({16, 64, 128, 160, 256}), 1 + below(random, 8),
                         random.below(2) == 0 ? s.key_heads : s.heads, 1 + below(random, 2));
    const DType half = random.below(4) == 0 ? DType::float16 : DType::bfloat16;
    AttentionProblem problem = random_problem(random, s);
    round_inputs(problem, half);
    const Joined masked = joined(random, x, s, device);
    problem.sees = masked.sees;
    CAPTURE(seed);
    CAPTURE(masked.mask.to_string());
    expect_near(run_attention(problem, masked.mask, half, device), solve(problem), limit_of(half),
                0.1);
  }
}

// As many blocks, of all heads of keys, as a card has threads to count their lists. All queries
// select the last one.
void check_last_block(Device device) {
  RandomNumbers random(75);
  const Sizes s{1, 8, 4, 20, 64 * 64, 64, 64};
  const Selection last{1, 4, 20, 1, 64, 1, std::vector<int32_t>(4 * 20, 63)};
  AttentionProblem problem = random_problem(random, s);
  problem.sees = [&](const MaskIndex& at) { return last.sees(s, at); };
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    if (is_half(dtype)) round_inputs(problem, dtype);
    expect_near(run_attention(problem, last.mask(device), dtype, device), solve(problem),
                is_half(dtype) ? limit_of(dtype) : 2e-5);
  }
}

// More blocks than the list of a block of threads holds.
void check_many_blocks(Device device) {
  for (const int64_t depth : {64, 128}) {
    RandomNumbers random(76);
    const Sizes s{1, 16, 1, 60, 2300, depth, depth};
    const Selection x = random_selection(random, s, 2, 40, 1);
    AttentionProblem problem = random_problem(random, s);
    round_inputs(problem, DType::bfloat16);
    problem.sees = [&](const MaskIndex& at) { return x.sees(s, at); };
    expect_near(run_attention(problem, x.mask(device), DType::bfloat16, device), solve(problem),
                limit_of(DType::bfloat16));
  }
}

struct Long {
  Tensor q, k, v, g;
  Mask mask;

  std::vector<Tensor> run() const {
    const Tensor x[] = {q.detach().requires_grad_(), k.detach().requires_grad_(),
                        v.detach().requires_grad_()};
    const AttentionWithLse y = attention_with_lse(x[0], x[1], x[2], {.mask = mask});
    y.out.backward(g);
    return {y.out, y.lse, x[0].grad(), x[1].grad(), x[2].grad()};
  }
};

Long long_call(Device device, DType dtype, int64_t length, int64_t block, int64_t index_heads) {
  RandomNumbers random(73);
  const Sizes s{1, 32, 2, length, length, 64, 64};
  const TensorOptions options{.dtype = dtype, .device = device};
  manual_seed(5);
  return {randn({1, 32, length, 64}, options), randn({1, 2, length, 64}, options),
          randn({1, 2, length, 64}, options), randn({1, 32, length, 64}, options),
          random_selection(random, s, block, 8, index_heads).mask(device) & Mask::causal()};
}

void check_bits(Device device) {
  const int threads = num_threads();
  const auto check = [&](DType dtype, int64_t block, int64_t index_heads) {
    const Long call = long_call(device, dtype, 700, block, index_heads);
    const std::vector<Tensor> first = call.run();
    for (int repeat = 0; repeat < (short_tests() ? 3 : device.is_cpu() ? 20 : 1000); ++repeat) {
      set_num_threads(1 + repeat % 3);
      const std::vector<Tensor> next = call.run();
      for (size_t i = 0; i < first.size(); ++i) {  // on the device: there are thousands
        REQUIRE(next[i].shape() == first[i].shape());
        REQUIRE(next[i].dtype() == first[i].dtype());
        REQUIRE((first[i] == next[i]).all().item<bool>());
      }
    }
    set_num_threads(threads);
  };
  check(DType::float32, 64, 2);
  check(DType::bfloat16, 64, 2);
  check(DType::bfloat16, 64, 32);
  check(DType::bfloat16, 192, 32);
}

// All queries select one block.
void check_one_block(Device device) {
  for (const int64_t depth : {64, 128}) {
    const TensorOptions options{.dtype = DType::bfloat16, .device = device};
    const Tensor q = randn({1, 4, 700, depth}, options), g = randn({1, 4, 700, depth}, options),
                 k = randn({1, 2, 900, depth}, options), v = randn({1, 2, 900, depth}, options);
    const Tensor index = full({1, 4, 700, 1}, 1, {.dtype = DType::int32, .device = device});
    const auto run = [&](const Tensor& keys, const Tensor& values, const AttentionMask& mask) {
      const Tensor x[] = {q.detach().requires_grad_(), keys.detach().requires_grad_(),
                          values.detach().requires_grad_()};
      const Tensor out = attention(x[0], x[1], x[2], {.mask = mask});
      out.backward(g);
      return std::vector{out, x[0].grad(), x[1].grad(), x[2].grad()};
    };
    const std::vector<Tensor> found = run(k, v, Mask::selected(index, 300));
    const std::vector<Tensor> expected = run(k.narrow(2, 300, 300), v.narrow(2, 300, 300), {});
    for (size_t i = 0; i < 4; ++i) {
      const Tensor own = i < 2 ? found[i] : found[i].narrow(2, 300, 300);
      CHECK(allclose(own, expected[i], {0.02, 0.004}));
      if (i >= 2) CHECK(found[i].narrow(2, 600, 300).abs().sum().item<double>() == 0);
    }
  }
}

void check_data(Device device) {
  const TensorOptions ints{.dtype = DType::int32, .device = device};
  Tensor index = zeros({1, 1, 100, 1}, ints);
  const Mask mask = Mask::selected(index, 10);
  const TensorOptions doubles{.dtype = DType::float64, .device = device, .requires_grad = true};
  const Tensor q = randn({1, 1, 100, 4}, doubles), k = randn({1, 1, 100, 4}, doubles),
               v = randn({1, 1, 100, 4}, doubles);
  const int64_t before = memory_stats(kCPU).masks;
  const Tensor first = attention(q, k, v, {.mask = mask});
  index.fill_(3);
  const Tensor second = attention(q, k, v, {.mask = mask});
  CHECK(memory_stats(kCPU).masks == before);  // nothing was compiled
  const auto expected = [&](int64_t block) {
    return attention(q, k.narrow(2, 10 * block, 10), v.narrow(2, 10 * block, 10));
  };
  CHECK(allclose(first, expected(0), {1e-12, 1e-12}));
  CHECK(allclose(second, expected(3), {1e-12, 1e-12}));
  CHECK(thrown_by([&] { first.sum().backward(); }).starts_with("AutogradError: attention"));
  second.sum().backward();
  CHECK(k.grad().narrow(2, 30, 10).abs().sum().item<double>() > 0);
  CHECK(k.grad().narrow(2, 0, 30).abs().sum().item<double>() == 0);
}

void check_nothing(Device device) {
  for (const DType dtype : {DType::float64, DType::bfloat16}) {
    const TensorOptions options{.dtype = dtype, .device = device, .requires_grad = true};
    const Tensor q = randn({1, 16, 9, 64}, options), k = randn({1, 1, 70, 64}, options),
                 v = randn({1, 1, 70, 64}, options);
    for (const Shape& shape :
         {Shape{1, 1, 9, 0}, Shape{1, 1, 9, 2}, Shape{1, 16, 9, 2}, Shape{1, 16, 9, 4}}) {
      const Tensor none = full(shape, -1, {.dtype = DType::int32, .device = device});
      const int64_t block = shape[3] == 4 ? 256 : 64;
      const AttentionWithLse y =
          attention_with_lse(q, k, v, {.mask = Mask::selected(none, block) & Mask::causal()});
      const std::vector<Tensor> gradients = grad({y.out}, {q, k, v}, {ones_like(y.out)});
      CHECK(y.out.to(DType::float64).abs().sum().item<double>() == 0);
      for (const Tensor& x : gradients) {
        CHECK(x.to(DType::float64).abs().sum().item<double>() == 0);
      }
      for (const double value : y.lse.to_vector<double>()) CHECK(std::isinf(value));
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("selected blocks: values and gradients", On, Cpu, Cuda) {
  if (!missing(On::device)) check_values(On::device);
}
TEST_CASE_TEMPLATE("selected blocks: halves", On, Cpu, Cuda) {
  if (!missing(On::device)) check_halves(On::device);
}
TEST_CASE_TEMPLATE("selected blocks: halves of random shapes", On, Cpu, Cuda) {
  if (!missing(On::device)) check_random_halves(On::device);
}
TEST_CASE_TEMPLATE("selected blocks: the last of many", On, Cpu, Cuda) {
  if (!missing(On::device)) check_last_block(On::device);
}
TEST_CASE_TEMPLATE("selected blocks: more than a list holds", On, Cpu, Cuda) {
  if (!missing(On::device)) check_many_blocks(On::device);
}
TEST_CASE_TEMPLATE("selected blocks: the same bits every time", On, Cpu, Cuda) {
  if (!missing(On::device)) check_bits(On::device);
}
TEST_CASE_TEMPLATE("selected blocks: one block for all queries", On, Cpu, Cuda) {
  if (!missing(On::device)) check_one_block(On::device);
}
TEST_CASE_TEMPLATE("selected blocks: the index is data", On, Cpu, Cuda) {
  if (!missing(On::device)) check_data(On::device);
}
TEST_CASE_TEMPLATE("selected blocks: queries that select nothing", On, Cpu, Cuda) {
  if (!missing(On::device)) check_nothing(On::device);
}

TEST_CASE("selected blocks: second derivatives") {
  RandomNumbers random(74);
  const Sizes s{1, 4, 2, 6, 9, 3, 2};
  const Mask mask = random_selection(random, s, 2, 3, 2).mask(kCPU) & Mask::causal();
  std::vector<Tensor> inputs;
  for (const Shape& shape : {Shape{1, 4, 6, 3}, Shape{1, 2, 9, 3}, Shape{1, 2, 9, 2}}) {
    inputs.push_back(to_tensor(random_array(random, shape), DType::float64, kCPU).requires_grad_());
  }
  const auto call = [&](const std::vector<Tensor>& x) {
    return attention(x[0], x[1], x[2], {.mask = mask});
  };
  CHECK(gradcheck(call, inputs).or_throw());
  CHECK(gradgradcheck(call, inputs, {.fast = true}).or_throw());
}

TEST_CASE("selected blocks: wrong calls") {
  const auto index = [](const Shape& shape, int32_t value) {
    return full(shape, value, {.dtype = DType::int32});
  };
  const Tensor q = randn({1, 4, 6, 3}), k = randn({1, 2, 9, 3});
  const auto call = [&](const Mask& mask) { attention(q, k, k, {.mask = mask}); };
  expect_errors({
      {"ValueError: attention_mask: expected blocks of at least one token, got 0",
       [&] {
         Mask::selected(index({1, 1, 6, 2}, 0), 0);
       }},
      {"ValueError: attention_mask: expected at least one query per row, got 0",
       [&] {
         Mask::selected(index({1, 1, 6, 2}, 0), 4, 0);
       }},
      {"DTypeError: attention_mask: expected an index of blocks of int32, got int64",
       [&] {
         Mask::selected(zeros({1, 1, 6, 2}, kInts), 4);
       }},
      {"ShapeError: attention_mask: expected 4 axes, got [6, 2]",
       [&] {
         Mask::selected(index({6, 2}, 0), 4);
       }},
      {"ShapeError: attention_mask: expected an index [1 or 1, heads that divide 4, 6, k], got "
       "[1, 1, 5, 2]; the mask is selected:4,1",
       [&] {
         call(Mask::selected(index({1, 1, 5, 2}, 0), 4));
       }},
      {"IndexError: attention: expected selected blocks in [-1, 3), got 3 at element 0",
       [&] {
         call(Mask::selected(index({1, 1, 6, 2}, 3), 4));
       }},
      {"IndexError: attention_mask: expected blocks in [-1, 3), got -2 at [0, 0, 0, 0]",
       [&] {
         Mask::selected(index({1, 1, 6, 2}, -2), 4).to_dense(6, 9);
       }},
  });
}
