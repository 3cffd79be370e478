// Attention at its ends: what lies around the operands and keys that nobody sees never reach a
// result; calls without scores.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const std::vector<int64_t> kLengths{1, 63, 64, 65, 127, 128, 129, 200};
const std::vector<DType> kDTypes{DType::bfloat16, DType::float16, DType::float32};

struct Operands {
  Tensor q, k, v, g;
};

Operands random_operands(int64_t queries, int64_t keys, int64_t depth, TensorOptions options) {
  manual_seed(static_cast<uint64_t>(queries + keys + depth));
  const Shape of_queries{2, 4, queries, depth}, of_keys{2, 2, keys, depth};
  return {randn(of_queries, options), randn(of_keys, options), randn(of_keys, options),
          randn(of_queries, options)};
}

/// out, dq, dk and dv.
std::vector<std::vector<double>> results(const Operands& x, const AttentionMask& mask) {
  const Tensor q = x.q.detach().requires_grad_(), k = x.k.detach().requires_grad_(),
               v = x.v.detach().requires_grad_();
  const Tensor out = attention(q, k, v, {.mask = mask});
  std::vector<std::vector<double>> all{out.to_vector<double>()};
  for (const Tensor& gradient : grad({out}, {q, k, v}, {x.g})) {
    all.push_back(gradient.to_vector<double>());
  }
  return all;
}

/// NaN, which equals nothing, is counted apart.
void expect_same(const std::vector<std::vector<double>>& found,
                 const std::vector<std::vector<double>>& expected) {
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(std::vector<std::string>({"out", "dq", "dk", "dv"})[i]);
    size_t poisoned = 0, differ = 0;
    for (size_t n = 0; n < found[i].size(); ++n) {
      poisoned += std::isnan(found[i][n]);
      differ += found[i][n] != expected[i][n];
    }
    CHECK(poisoned == 0);
    CHECK(differ == 0);
  }
}

/// The same elements amid NaN: rows before and after them, heads on both sides, further features.
Tensor amid_nan(const Tensor& x) {
  constexpr int64_t rows = 72, features = 8;
  const Shape& shape = x.shape();
  Tensor buffer = full({shape[0], shape[1] + 2, shape[2] + 2 * rows, shape[3] + features}, kNaN,
                       {.dtype = x.dtype(), .device = x.device()});
  Tensor inside = buffer.narrow(1, 1, shape[1]).narrow(2, rows, shape[2]).narrow(3, 0, shape[3]);
  inside.copy_(x);
  return inside;
}

void check_surroundings(Device device) {
  const std::vector<AttentionMask> masks{{}, AttentionMask::causal(), AttentionMask::window(40, 9)};
  std::vector<int64_t> depths{24, 64, 96, 128, 256};
  if (short_tests()) depths = {64};
  size_t round = 0;
  for (const DType dtype : kDTypes) {
    for (const int64_t depth : depths) {
      for (size_t i = 0; i < kLengths.size(); i += short_tests() ? 5 : 1) {
        const int64_t queries = kLengths[i];
        const int64_t keys = kLengths[(i + round / kLengths.size()) % kLengths.size()];
        const AttentionMask& mask = masks[round++ % masks.size()];
        const std::string where = to_string(device) + " " + std::string(name(dtype)) + " " +
                                  std::to_string(queries) + " x " + std::to_string(keys) + " x " +
                                  std::to_string(depth) + " " + mask.to_string();
        CAPTURE(where);
        const Operands x =
            random_operands(queries, keys, depth, {.dtype = dtype, .device = device});
        const Operands amid{amid_nan(x.q), amid_nan(x.k), amid_nan(x.v), amid_nan(x.g)};
        expect_same(results(amid, mask), results(x, mask));
      }
    }
  }
}

/// `x` [B, H, S, D] with `value` in rows [first[b], S).
Tensor ending_in(const Tensor& x, const std::vector<int64_t>& first, double value) {
  Tensor y = x.clone();
  for (int64_t b = 0; b < y.size(0); ++b) {
    const int64_t from = first[static_cast<size_t>(b)];
    y.select(0, b).narrow(1, from, y.size(2) - from).fill_(value);
  }
  return y;
}

/// Blocks of 64 keys of which no query sees one are not read, whether data or a pattern hides them.
void check_hidden_blocks(Device device) {
  const int64_t length = 330;
  const AttentionMask data =
      AttentionMask::key_lengths(tensor<int32_t>({70, 192}, {.device = device}));
  const AttentionMask pattern(data.to_dense({2, 1, length, length}, device));
  const AttentionMask causal = AttentionMask::causal(), window = AttentionMask::window(150, 40);
  std::vector<int64_t> depths{24, 64, 128};
  if (short_tests()) depths = {64};
  for (const DType dtype : kDTypes) {
    for (const int64_t depth : depths) {
      const Operands x = random_operands(length, length, depth, {.dtype = dtype, .device = device});
      Operands zeros = x, poisoned = x;
      for (Tensor Operands::*operand : {&Operands::k, &Operands::v}) {
        zeros.*operand = ending_in(x.*operand, {128, 192}, 0);
        poisoned.*operand = ending_in(x.*operand, {128, 192}, kNaN);
      }
      std::vector<AttentionMask> masks{data, window & pattern};
      if (!short_tests()) {
        masks.insert(masks.end(), {pattern, causal & data, causal & pattern, window & data});
      }
      for (const AttentionMask& mask : masks) {
        CAPTURE(name(dtype));
        CAPTURE(depth);
        CAPTURE(mask.to_string());
        expect_same(results(poisoned, mask), results(zeros, mask));
      }
    }
  }
}

/// No scores at all: results and gradients are zeros of the right shapes.
void check_empty(Device device) {
  struct Extents {
    int64_t batch, queries, keys;
  };
  for (const Extents& s : {Extents{2, 3, 0}, {2, 0, 3}, {0, 3, 3}, {2, 0, 0}}) {
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      CAPTURE(s.batch);
      CAPTURE(s.queries);
      CAPTURE(s.keys);
      CAPTURE(name(dtype));
      const TensorOptions options{.dtype = dtype, .device = device, .requires_grad = true};
      const Tensor q = ones({s.batch, 2, s.queries, 16}, options),
                   k = ones({s.batch, 1, s.keys, 16}, options),
                   v = ones({s.batch, 1, s.keys, 8}, options), relative = ones({2, 5}, options);
      const AttentionWithLse y =
          attention_with_lse(q, k, v, {.mask = AttentionMask::causal(), .relative_bias = relative});
      CHECK(y.out.shape() == Shape{s.batch, 2, s.queries, 8});
      CHECK(all_equal(y.out, 0));
      CHECK(all_equal(y.lse, std::numeric_limits<double>::infinity()));
      backward({y.out, y.lse}, {ones_like(y.out), ones_like(y.lse)});
      for (const Tensor& x : {q, k, v, relative}) {
        CHECK(x.grad().shape() == x.shape());
        CHECK(all_equal(x.grad(), 0));
      }
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("mask ends: memory around the operands does not reach a result", On, Cpu, Cuda) {
  if (!missing(On::device)) check_surroundings(On::device);
}

TEST_CASE_TEMPLATE("mask ends: hidden key blocks do not reach a result", On, Cpu, Cuda) {
  if (!missing(On::device)) check_hidden_blocks(On::device);
}

TEST_CASE_TEMPLATE("mask ends: calls without keys, queries or batches", On, Cpu, Cuda) {
  if (!missing(On::device)) check_empty(On::device);
}

TEST_CASE_TEMPLATE("attention: with a dropout of 1, results and gradients are 0", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Operands x = random_operands(9, 12, 16, {.device = On::device, .requires_grad = true});
  const Tensor y = attention(x.q, x.k, x.v, {.dropout = 1});
  CHECK(all_equal(y, 0));
  for (const Tensor& d : grad({y}, {x.q, x.k, x.v}, {x.g.detach()})) CHECK(all_equal(d, 0));
  CHECK(all_equal(attention_probabilities(x.q, x.k, {.dropout = 1}), 0));
}

TEST_CASE_TEMPLATE("attention: later draws drop the weights that plain ops drop", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const Operands x = random_operands(40, 70, 16, {.device = On::device});
  const Tensor v = x.v.repeat_interleave(2, 1);
  const AttentionOptions options{.dropout = 0.5};
  manual_seed(5);
  const Tensor first = attention(x.q, x.k, x.v, options);
  const Tensor second = attention(x.q, x.k, x.v, options);
  manual_seed(5);
  const Tensor weights = attention_probabilities(x.q, x.k, options);
  CHECK(relative_error(first, matmul(weights, v)) < 1e-5);
  CHECK(relative_error(second, matmul(weights, v)) > 0.1);
  CHECK(relative_error(second, matmul(attention_probabilities(x.q, x.k, options), v)) < 1e-5);
}

TEST_CASE("top keys: a negative scale chooses the least products") {
  const TensorOptions host{.dtype = DType::float64, .device = kCPU};
  const Tensor q = ones({1, 1, 1, 1}, host),
               k = tensor({3.0, 1.0, 4.0, 1.5}, host).view({1, 1, 4, 1});
  CHECK(top_keys(q, k, 2, {.scale = -1}).to_vector<int64_t>() == std::vector<int64_t>{1, 3});
}
