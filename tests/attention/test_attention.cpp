// Attention over every kind of mask, on each backend: values, gradients, bits, memory, errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/parallel.h>
#include <sash/sash.h>

#include "../support/attention/attention_run.h"
#include "../support/attention/mask_kinds.h"
#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/op_inputs.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr uint64_t kSeed = 7;

// Rounds of a test with random calls; few under memory checkers.
size_t rounds(size_t count) { return short_tests() ? (count + 14) / 15 : count; }

struct Sizes {
  int64_t batch, heads, groups, queries, keys, depth, v_depth;
};

// One call with its answer: the problem for the reference, tensors for the library.
struct Trial {
  Sizes sizes{};
  NamedMask mask;
  AttentionProblem problem;
};

Array random_array(RandomNumbers& random, const Shape& shape) {
  return generate(shape, [&](const Index&) {
    return static_cast<double>(static_cast<float>(2 * random.uniform() - 1));
  });
}

Trial make_trial(RandomNumbers& random, const Sizes& s, NamedMask mask, bool scores_only = false) {
  Trial trial{s, std::move(mask), {}};
  AttentionProblem& p = trial.problem;
  p.q = random_array(random, {s.batch, s.heads, s.queries, s.depth});
  p.k = random_array(random, {s.batch, s.groups, s.keys, s.depth});
  p.v = random_array(random, {s.batch, s.groups, s.keys, s.v_depth});
  p.g = random_array(random, {s.batch, s.heads, s.queries, s.v_depth});
  p.g_lse = Array({s.batch, s.heads, s.queries});
  p.sees = trial.mask.sees;
  p.seed = kSeed;
  p.scale = 0.5 + random.uniform();
  if (scores_only) return trial;
  const auto sometimes = [&] { return random.below(4) == 0; };
  if (sometimes()) p.g_lse = random_array(random, {s.batch, s.heads, s.queries});
  if (sometimes()) p.softcap = 0.5 + random.uniform();
  if (sometimes()) p.dropout = 0.3;
  if (sometimes()) p.bias = random_array(random, {s.heads, s.queries, s.keys});
  if (sometimes()) {
    const auto reach = static_cast<int64_t>(random.below(90));
    p.relative_bias = random_array(random, {s.heads, 2 * reach + 1});
  }
  if (sometimes()) {
    for (int64_t h = 0; h < s.heads; ++h) {
      p.slopes.push_back(static_cast<double>(static_cast<float>(random.uniform())));
    }
  }
  return trial;
}

const std::vector<int64_t> kLengths{1, 2, 5, 17, 48, 63, 64, 65, 96, 130, 161};

// `depth` features a head; 0: few, and values differ.
Trial random_trial(RandomNumbers& random, size_t kind, Device device, int64_t depth = 0,
                   const std::vector<int64_t>& lengths = kLengths, bool scores_only = false) {
  const auto length = [&] { return lengths[random.below(lengths.size())]; };
  const std::vector<MaskKind>& kinds = mask_kinds();
  const MaskKind &a = kinds[kind % kinds.size()], &b = kinds[random.below(kinds.size())];
  Sizes s{};
  s.batch = 1 + static_cast<int64_t>(random.below(3));
  s.groups = 1 + static_cast<int64_t>(random.below(2));
  s.heads = s.groups * (1 + static_cast<int64_t>(random.below(2)));
  s.queries = length();
  s.keys = a.square || b.square ? s.queries : length();
  s.depth = depth > 0 ? depth : 1 + static_cast<int64_t>(random.below(20));
  s.v_depth = depth > 0 ? depth : 1 + static_cast<int64_t>(random.below(20));
  const MaskShape shape{s.batch, s.heads, s.queries, s.keys};
  NamedMask mask = a.make(random, shape, device);
  const uint64_t joint = random.below(3);
  if (joint == 1) mask = both(mask, b.make(random, shape, device));
  if (joint == 2) mask = either(mask, b.make(random, shape, device));
  return make_trial(random, s, std::move(mask), scores_only);
}

AttentionResults run(const Trial& trial, DType dtype, Device device) {
  return run_attention(trial.problem, trial.mask.mask, dtype, device);
}

// max |x - y| / max(1, max |y|); infinite where only one is, or x is NaN.
double distance(const std::vector<double>& x, const std::vector<double>& y) {
  double error = 0, scale = 1;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;
    const double e = std::abs(x[i] - y[i]);
    error = std::isnan(e) ? std::numeric_limits<double>::infinity() : std::max(error, e);
    if (std::isfinite(y[i])) scale = std::max(scale, std::abs(y[i]));
  }
  return error / scale;
}

std::vector<const Array*> parts(const AttentionAnswer& a) {
  return {&a.out, &a.lse, &a.dq, &a.dk, &a.dv, &a.dbias, &a.drelative};
}

std::vector<double> distances(const AttentionResults& result, const AttentionAnswer& answer) {
  std::vector<double> all;
  const std::vector<Tensor> found = result.all();
  for (size_t i = 0; i < found.size(); ++i) {
    const std::vector<double>& expected = parts(answer)[i]->values;
    const bool defined = found[i].defined();
    all.push_back(defined == expected.empty() ? std::numeric_limits<double>::infinity()
                  : defined                   ? distance(found[i].to_vector<double>(), expected)
                                              : 0);
  }
  return all;
}

std::vector<double> distances(const AttentionAnswer& found, const AttentionAnswer& answer) {
  std::vector<double> all;
  for (size_t i = 0; i < parts(found).size(); ++i) {
    all.push_back(distance(parts(found)[i]->values, parts(answer)[i]->values));
  }
  return all;
}

std::string describe(const Trial& t) {
  const Sizes& s = t.sizes;
  std::string text = t.mask.mask.to_string();
  for (const int64_t n : {s.batch, s.heads, s.groups, s.queries, s.keys, s.depth, s.v_depth}) {
    text += " " + std::to_string(n);
  }
  return text + " softcap " + std::to_string(t.problem.softcap) + " dropout " +
         std::to_string(t.problem.dropout) + " bias " +
         std::to_string(t.problem.bias.values.size()) + " relative " +
         std::to_string(t.problem.relative_bias.values.size()) + " slopes " +
         std::to_string(t.problem.slopes.size());
}

const std::vector<std::string> kNames{"out", "lse", "dq", "dk", "dv", "dbias", "drelative"};

void expect_values(const Trial& trial, Device device) {
  const AttentionAnswer answer = solve(trial.problem);
  for (const DType dtype : {DType::float64, DType::float32}) {
    const std::vector<double> found = distances(run(trial, dtype, device), answer);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] <= (dtype == DType::float64 ? 1e-12 : 1e-5)) continue;
      FAIL_CHECK(to_string(device), " ", name(dtype), " ", kNames[i], " is off by ", found[i],
                 " for ", describe(trial));
    }
  }
}

void expect_halves(Trial trial, Device device, DType dtype) {
  AttentionProblem& p = trial.problem;
  for (Array* x : {&p.q, &p.k, &p.v, &p.g, &p.bias, &p.relative_bias}) {
    for (double& value : x->values) value = rounded(value, dtype);
  }
  const AttentionAnswer answer = solve(p);
  p.round = [dtype](double x) { return rounded(x, dtype); };
  const std::vector<double> dense = distances(solve(p), answer);
  const std::vector<double> found = distances(run(trial, dtype, device), answer);
  const double unit = dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-11;
  const double factor = p.softcap > 0 ? 3 : 2;
  for (size_t i = 0; i < found.size(); ++i) {
    // Sums over many rows are lucky at times.
    const double least = kNames[i] == "drelative" ? 4 * unit : unit;
    if (found[i] <= factor * std::max(dense[i], least)) continue;
    FAIL_CHECK(to_string(device), " ", name(dtype), " ", kNames[i], " is off by ", found[i],
               " where the dense formula is by ", dense[i], " for ", describe(trial));
  }
}

void check_values(Device device) {
  RandomNumbers random(21);
  for (size_t round = 0; round < rounds(240); ++round) {
    expect_values(random_trial(random, round, device), device);
  }
}

void check_halves(Device device) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    RandomNumbers random(22);
    for (size_t round = 0; round < rounds(60); ++round) {
      expect_halves(random_trial(random, round, device), device, dtype);
    }
  }
}

void check_widths(Device device) {
  RandomNumbers random(25);
  for (const int64_t depth : {24, 32, 40, 64, 72, 96, 128, 160, 256, 320, 512}) {
    for (size_t round = 0; round < rounds(5); ++round) {
      const Trial trial = random_trial(random, round, device, depth);
      expect_values(trial, device);
      expect_halves(trial, device, round % 2 == 0 ? DType::bfloat16 : DType::float16);
    }
  }
}

// Halves, a pattern and no options, which kernels with tiles of fixed widths take; lengths around
// the edges of tiles.
void check_tiles(Device device) {
  struct Features {
    int64_t depth, v_depth;
  };
  std::vector<Features> all{{32, 64},  {64, 24},   {96, 40},  {104, 96},
                            {24, 256}, {256, 128}, {512, 64}, {40, 264}};
  for (const int64_t d : {8, 24, 32, 40, 64, 80, 96, 104, 128, 160, 192, 256, 300, 512}) {
    all.push_back({d, d});
  }
  const std::vector<int64_t> lengths{63, 64, 65, 129};
  const std::vector<std::string> names{"causal", "symmetric_window", "window", "block_sparse"};
  RandomNumbers random(26);
  const auto length = [&] { return lengths[random.below(lengths.size())]; };
  for (const Features& features : all) {
    for (size_t round = 0; round < rounds(3); ++round) {
      const int64_t heads = round == 0 ? 2 : 1;
      const Sizes s{1, heads, 1, length(), length(), features.depth, features.v_depth};
      const std::string& name = names[random.below(names.size())];
      const auto kind = std::find_if(mask_kinds().begin(), mask_kinds().end(),
                                     [&](const MaskKind& x) { return x.name == name; });
      const MaskShape shape{s.batch, s.heads, s.queries, s.keys};
      Trial trial = make_trial(random, s, kind->make(random, shape, device), true);
      if (round % 3 == 0) trial.problem.g_lse = random_array(random, {s.batch, s.heads, s.queries});
      expect_halves(trial, device, round % 2 == 0 ? DType::bfloat16 : DType::float16);
    }
  }
}

// Several blocks of queries and keys: a pattern and masks of data, without options and with them.
void check_blocks(Device device) {
  RandomNumbers random(27);
  const std::vector<std::string> names{"causal", "key_lengths", "packed", "row_ranges"};
  const std::vector<MaskKind>& kinds = mask_kinds();
  for (const bool scores_only : {true, false}) {
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      if (std::find(names.begin(), names.end(), kinds[kind].name) == names.end()) continue;
      const int64_t depth = random.below(2) == 0 ? 64 : 128;
      const Trial trial = random_trial(random, kind, device, depth, {129, 160}, scores_only);
      expect_halves(trial, device, scores_only ? DType::bfloat16 : DType::float16);
    }
  }
}

void check_bits(Device device) {
  const int threads = num_threads();
  RandomNumbers random(23);
  for (size_t round = 0; round < rounds(30); ++round) {
    const Trial trial = random_trial(random, round, device);
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
      CAPTURE(describe(trial));
      const std::vector<Tensor> first = run(trial, dtype, device).all();
      set_num_threads(round % 2 == 0 ? 1 : 3);
      const std::vector<Tensor> second = run(trial, dtype, device).all();
      set_num_threads(threads);
      for (size_t i = 0; i < first.size(); ++i) CHECK(all_same(first[i], second[i]));
    }
  }
}

void check_gradients(Device device) {
  RandomNumbers random(24);
  const MaskShape shape{2, 2, 5, 5};
  const std::vector<MaskKind>& kinds = mask_kinds();
  for (size_t i = 0; i < kinds.size(); i += short_tests() ? 5 : 1) {
    const NamedMask mask = kinds[i].make(random, shape, device);
    CAPTURE(mask.mask.to_string());
    std::vector<Tensor> inputs;
    for (const Shape& extents :
         {Shape{2, 2, 5, 3}, Shape{2, 1, 5, 3}, Shape{2, 1, 5, 2}, Shape{2, 5, 5}, Shape{1, 3}}) {
      inputs.push_back(
          to_tensor(random_array(random, extents), DType::float64, device).requires_grad_());
    }
    const Tensor slopes = tensor<float>({0.1F, 0.3F}).to(device);
    const auto call = [&](const std::vector<Tensor>& x) {
      manual_seed(kSeed);
      return attention(x[0], x[1], x[2],
                       {.mask = mask.mask,
                        .softcap = 1.3,
                        .bias = x[3],
                        .relative_bias = x[4],
                        .alibi_slopes = slopes,
                        .dropout = 0.2});
    };
    CHECK(gradcheck(call, inputs, {.fast = short_tests()}).or_throw());
    CHECK(gradgradcheck(call, inputs, {.fast = true}).or_throw());
  }
}

void check_blind_queries(Device device) {
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    const TensorOptions options{.dtype = dtype, .device = device, .requires_grad = true};
    const Tensor q = randn({1, 2, 70, 16}, options), k = randn({1, 2, 70, 16}, options),
                 v = randn({1, 2, 70, 16}, options);
    const Tensor none = tensor<int32_t>({0}).to(device);
    const AttentionWithLse y =
        attention_with_lse(q, k, v, {.mask = AttentionMask::key_lengths(none)});
    y.out.backward(randn({1, 2, 70, 16}, {.dtype = dtype, .device = device}));
    for (const Tensor& x : {y.out, q.grad(), k.grad(), v.grad()}) {
      for (const double value : x.to_vector<double>()) REQUIRE(value == 0);
    }
    for (const double value : y.lse.to_vector<double>()) REQUIRE(std::isinf(value));
  }
}

void check_data(Device device) {
  Tensor lengths = tensor<int32_t>({70, 3}).to(device);
  const AttentionMask mask = AttentionMask::window(20, 5) & AttentionMask::key_lengths(lengths);
  const TensorOptions options{.dtype = DType::float64, .device = device};
  const Tensor q = randn({2, 1, 70, 4}, options), k = randn({2, 1, 70, 4}, options),
               v = randn({2, 1, 70, 4}, options);
  const Tensor before = attention(q, k, v, {.mask = mask});
  lengths.copy_(tensor<int32_t>({9, 66}));
  const Tensor after = attention(q, k, v, {.mask = mask});
  const AttentionMask fresh =
      AttentionMask::window(20, 5) &
      AttentionMask(AttentionMask::key_lengths(tensor<int32_t>({9, 66})).to_dense(70, 70, device));
  const Tensor expected = attention(q, k, v, {.mask = fresh});
  CHECK_FALSE(all_same(before, after));
  const std::vector<double> x = after.to_vector<double>(), y = expected.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(x[i] - y[i]) < 1e-12);
}

void check_memory(Device device) {
  const int64_t length = 65536, window = 256;
  const DType dtype = device.is_cpu() ? DType::float32 : DType::bfloat16;
  const TensorOptions options{.dtype = dtype, .device = device, .requires_grad = true};
  const Tensor q = randn({1, 1, length, 64}, options), k = randn({1, 1, length, 64}, options),
               v = randn({1, 1, length, 64}, options);
  const AttentionOptions attend{.mask = AttentionMask::causal_window(window)};
  attention(q, k, v, attend);  // compiles the mask
  reset_peak_memory(device);
  const int64_t before = memory_stats(device).current;
  const Tensor g = randn({1, 1, length, 64}, {.dtype = dtype, .device = device});
  attention(q, k, v, attend).backward(g);
  const int64_t own = 3 * length * 64 * size_of(dtype);  // q, k and v
  const int64_t peak = memory_stats(device).peak - before;
  CAPTURE(to_string(device));
  CHECK(peak < 4 * own);
}

}  // namespace

TEST_CASE_TEMPLATE("masks: values and gradients agree with plain float64 loops", On, Cpu, Cuda) {
  if (!missing(On::device)) check_values(On::device);
}

TEST_CASE_TEMPLATE("masks: errors in half types are at most twice those of the dense formula", On,
                   Cpu, Cuda) {
  if (!missing(On::device)) check_halves(On::device);
}

TEST_CASE_TEMPLATE("mask widths: heads of up to 512 features", On, Cpu, Cuda) {
  if (!missing(On::device)) check_widths(On::device);
}

TEST_CASE_TEMPLATE("mask widths: half types, all widths of tiles and between", On, Cpu, Cuda) {
  if (!missing(On::device)) check_tiles(On::device);
}

TEST_CASE_TEMPLATE("mask blocks: patterns and data over several blocks, with options", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_blocks(On::device);
}

TEST_CASE_TEMPLATE("masks: two runs, and any number of threads, give the same bits", On, Cpu,
                   Cuda) {
  if (!missing(On::device)) check_bits(On::device);
}

TEST_CASE_TEMPLATE("mask gradients: first and second pass gradcheck", On, Cpu, Cuda) {
  if (!missing(On::device)) check_gradients(On::device);
}

TEST_CASE_TEMPLATE("masks: queries that see nothing get zeros, no NaN", On, Cpu, Cuda) {
  if (!missing(On::device)) check_blind_queries(On::device);
}

TEST_CASE_TEMPLATE("masks: data of a mask may change without recompiling it", On, Cpu, Cuda) {
  if (!missing(On::device)) check_data(On::device);
}

TEST_CASE_TEMPLATE("masks: memory is linear in the length", On, Cpu, Cuda) {
  if (!missing(On::device)) check_memory(On::device);
}

TEST_CASE("attention: overwriting a mask before the backward pass is an error") {
  Tensor lengths = tensor<int32_t>({3});
  const Tensor q = randn({1, 1, 4, 2}, {.requires_grad = true});
  const Tensor y = attention(q, q, q, {.mask = AttentionMask::key_lengths(lengths)});
  lengths.fill_(2);
  CHECK_THROWS_AS(y.backward(ones_like(y)), AutogradError);
}

TEST_CASE("attention: heads that no kernel takes are errors<cuda>") {
  if (missing(kCUDA)) return;
  const Tensor q = zeros({1, 1, 4, 513}, {.device = kCUDA});
  expect_error<NotImplemented>("attention: expected heads of at most 512 features on cuda, got 513",
                               [&] { attention(q, q, q); });
}

TEST_CASE("attention: layouts and bool masks of the host serve calls on a card<cuda>") {
  if (missing(kCUDA)) return;
  const Tensor q = randn({1, 2, 128, 8}, {.device = kCUDA});
  for (const int64_t n : {4, 128}) {
    const Tensor of_host = gt(tril(ones({n, n}, {.device = kCPU})), 0);
    const auto mask_of = [n](const Tensor& x) {
      return n == 4 ? AttentionMask::block_sparse(x, 32) : AttentionMask(x);
    };
    const Tensor here = attention(q, q, q, {.mask = mask_of(of_host)});
    const Tensor there = attention(q, q, q, {.mask = mask_of(of_host.to(kCUDA))});
    CHECK((here - there).abs().max().item<float>() == 0);
  }
  const Tensor lengths = tensor<int32_t>({5}, {.device = kCPU});
  CHECK_THROWS_AS(attention(q, q, q, {.mask = AttentionMask::key_lengths(lengths)}), DeviceError);
}

TEST_CASE("attention: wrong options are errors") {
  const Tensor q = zeros({2, 4, 5, 8}), k = zeros({2, 2, 7, 8});
  const auto call = [&](AttentionOptions options) {
    return [&q, &k, options = std::move(options)] { attention(q, k, k, options); };
  };
  const std::string op = "attention: ";
  expect_error<ValueError>(op + "expected a softcap above 0, or 0 for none, got -1",
                           call({.softcap = -1}));
  expect_error<ShapeError>(op + "expected a bias that broadcasts to [2, 4, 5, 7], got [5, 8]",
                           call({.bias = zeros({5, 8})}));
  expect_error<DTypeError>(op + "expected tensors of one dtype, got float32 and float64",
                           call({.bias = zeros({5, 7}, {.dtype = DType::float64})}));
  expect_error<ShapeError>(
      op + "expected a relative bias [1 or 4, 2 R + 1], an odd number of distances, got [4, 6]",
      call({.relative_bias = zeros({4, 6})}));
  expect_error<ShapeError>(op + "expected ALiBi slopes [4], got [2]",
                           call({.alibi_slopes = zeros({2})}));
  expect_error<DTypeError>(op + "expected ALiBi slopes of float32, got float64",
                           call({.alibi_slopes = zeros({4}, {.dtype = DType::float64})}));
}
