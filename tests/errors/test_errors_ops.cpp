// Wrong calls of ops. Errors name the op and are thrown before any work.

#include <limits>

#include <doctest/doctest.h>

#include <sash/core/backend/dispatch.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/elementwise/gelu.h>
#include <sash/ops/elementwise/where.h>
#include <sash/ops/index/embedding.h>
#include <sash/ops/index/gather.h>
#include <sash/ops/linalg/linear.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/ops/norm/softmax.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/ops/shape/concat.h>
#include <sash/ops/update/optimizer.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Inputs {
  Tensor x = zeros({2, 3});
  Tensor pair = zeros({2});
  Tensor doubles = zeros({2, 3}, kDoubles);
  Tensor ints = zeros({2, 3}, kInts);
  Tensor bools = zeros({2, 3}, kBools);
  Tensor none;
};

}  // namespace

// It would break a row with braces in its call over four lines.
// clang-format off

TEST_CASE_FIXTURE(Inputs, "wrong calls: elementwise") {
  expect_errors({
      {"ShapeError: add: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { x + pair; }},
      {"ValueError: sub: expected a tensor, got an undefined tensor", [&] { x - none; }},
      {"ValueError: sub: expected a value of uint8, got 256",
       [&] { zeros({2}, {.dtype = DType::uint8}) - 256; }},
      {"ValueError: sub: expected a value of uint8, got -1",
       [&] { -1 - zeros({2}, {.dtype = DType::uint8}); }},
      {"ValueError: sub: expected a value of int32, got 5000000000",
       [&] { 5000000000 - zeros({2}, {.dtype = DType::int32}); }},
      {"DTypeError: sub: expected a dtype of numbers, got bool", [&] { bools - bools; }},
      {"ValueError: pow: expected an exponent of at least 0 for integers, got -2",
       [&] { pow(ints, -2); }},
      {"ShapeError: pow: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { pow(x, pair); }},
      {"ValueError: minimum: expected a tensor, got an undefined tensor",
       [&] { minimum(none, x); }},
      {"DTypeError: silu: expected a floating dtype, got int64", [&] { silu(ints); }},
      {"DTypeError: neg: expected a dtype of numbers, got bool", [&] { -bools; }},
      {"DTypeError: relu: expected a floating dtype, got int64", [&] { relu(ints); }},
      {"ValueError: tanh: expected a tensor, got an undefined tensor", [&] { tanh(none); }},
      {"DTypeError: gelu: expected a floating dtype, got int64", [&] { gelu(ints); }},
      {"ValueError: clamp: expected a bound, got none", [&] { clamp(x, {}); }},
      {"ValueError: clamp: expected low <= high, got 1 and 0", [&] { clamp(x, 1, 0); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: comparisons and choices") {
  expect_errors({
      {"ShapeError: lt: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { lt(x, pair); }},
      {"DTypeError: logical_and: expected bool, got float32", [&] { logical_and(x, x); }},
      {"DTypeError: logical_not: expected bool, got int64", [&] { logical_not(ints); }},
      {"DTypeError: isnan: expected a floating dtype, got int64", [&] { isnan(ints); }},
      {"DTypeError: where: expected bool, got float32", [&] { where(x, x, x); }},
      {"DTypeError: masked_fill: expected bool, got int64", [&] { masked_fill(x, ints, 0); }},
      {"ShapeError: masked_fill: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { masked_fill(x, zeros({2}, kBools), 0); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: reductions") {
  expect_errors({
      {"IndexError: sum: expected an axis in [-2, 2) for rank 2, got 2", [&] { x.sum({2}); }},
      {"ValueError: sum: expected each axis once, got [0, -2]", [&] { sum(x, {0, -2}); }},
      {"ValueError: sum: expected a tensor, got an undefined tensor", [&] { sum(none); }},
      {"DTypeError: mean: expected a floating dtype, got int64", [&] { ints.mean(); }},
      {"DTypeError: var: expected a floating dtype, got bool", [&] { var(bools); }},
      {"ShapeError: amax: expected reduced axes that are not empty, got [0, 3]",
       [] { amax(zeros({0, 3}), {0}); }},
      {"IndexError: amin: expected an axis in [-2, 2) for rank 2, got -3", [&] { amin(x, {-3}); }},
      {"ShapeError: argmax: expected an axis that is not empty, got [2, 0]",
       [] { argmax(zeros({2, 0})); }},
      {"IndexError: argmin: expected an axis in [-2, 2) for rank 2, got 5", [&] { argmin(x, 5); }},
      {"DTypeError: logsumexp: expected a floating dtype, got int64", [&] { logsumexp(ints); }},
      {"IndexError: cumsum: expected an axis in [-2, 2) for rank 2, got 2", [&] { cumsum(x, 2); }},
      {"ShapeError: sum_to: expected a shape that broadcasts to [2, 3], got [2]",
       [&] { sum_to(x, {2}); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: products") {
  expect_errors({
      {"ShapeError: matmul: expected a [..., M, K] and b [..., K, N] with one K, got [2, 3] and "
       "[2, 3]",
       [&] { matmul(x, x); }},
      {"ShapeError: matmul: expected shapes that broadcast together, got [2] and [3]",
       [] { matmul(zeros({2, 4, 5}), zeros({3, 5, 4})); }},
      {"ShapeError: matmul: expected at least 1 axis, got []", [&] { matmul(zeros({}), x); }},
      {"DTypeError: matmul: expected a dtype of numbers, got bool",
       [&] { matmul(bools, bools.mT()); }},
      {"DTypeError: matmul: expected tensors of one dtype, got float32 and float64",
       [&] { matmul(x, doubles.mT()); }},
      {"ShapeError: linear: expected x [..., in] and weight [out, in] with one in, got [2, 3] and "
       "[3, 2]",
       [&] { linear(x, zeros({3, 2})); }},
      {"ShapeError: linear: expected bias [5], got [4]",
       [&] { linear(x, zeros({5, 3}), zeros({4})); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: rows") {
  expect_errors({
      {"IndexError: softmax: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { softmax(x, 2); }},
      {"DTypeError: log_softmax: expected a floating dtype, got int64", [&] { log_softmax(ints); }},
      {"ShapeError: layer_norm: expected an input whose last axes are [4], got [2, 3]",
       [&] { layer_norm(x, {4}); }},
      {"ShapeError: layer_norm: expected shape [3], got [2]", [&] { layer_norm(x, {3}, pair); }},
      {"ShapeError: layer_norm: expected a normalized shape with an axis, got []",
       [&] { layer_norm(x, {}); }},
      {"ValueError: layer_norm: expected eps of at least 0, got -1",
       [&] { layer_norm(x, {3}, {}, {}, -1); }},
      {"ValueError: dropout: expected a probability in [0, 1], got 2", [&] { dropout(x, 2); }},
      {"ValueError: dropout: expected a probability in [0, 1], got nan",
       [&] { dropout(x, std::numeric_limits<double>::quiet_NaN()); }},
      {"DTypeError: dropout: expected a floating dtype, got int64", [&] { dropout(ints, 0.5); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: attention") {
  const Tensor q = zeros({1, 2, 3, 4});
  expect_errors({
      {"ShapeError: attention: expected 4 axes, got [2, 3]", [&] { attention(x, x, x); }},
      {"ShapeError: attention: expected q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, "
       "D_v], H a multiple of H_kv, got [1, 2, 3, 4], [1, 2, 3, 5] and [1, 2, 3, 4]",
       [&] { attention(q, zeros({1, 2, 3, 5}), q); }},
      {"ShapeError: attention: expected q [B, H, S_q, D], k [B, H_kv, S_k, D], v [B, H_kv, S_k, "
       "D_v], H a multiple of H_kv, got [1, 3, 3, 4], [1, 2, 3, 4] and [1, 2, 3, 4]",
       [] { attention(zeros({1, 3, 3, 4}), zeros({1, 2, 3, 4}), zeros({1, 2, 3, 4})); }},
      {"ShapeError: attention: expected heads of at least one feature, got [1, 2, 3, 0]",
       [&] { attention(ones({1, 2, 3, 4}), ones({1, 2, 3, 4}), ones({1, 2, 3, 0})); }},
  });
  const AttentionMask narrow = zeros({5, 3}, kBools);
  expect_errors({
      {"ShapeError: attention_mask: expected a mask that broadcasts to [1, 2, 3, 3], got [5, 3]; "
       "the mask is tensor",
       [&] { attention(q, q, q, {.mask = narrow}); }},
      {"DTypeError: attention_mask: expected bool, got float32", [&] { AttentionMask{x}; }},
      {"ValueError: attention: expected a dropout probability in [0, 1], got 2",
       [&] { attention(q, q, q, {.dropout = 2}); }},
      {"ValueError: attention: expected a finite scale, got inf",
       [&] { attention(q, q, q, {.scale = std::numeric_limits<double>::infinity()}); }},
      {"DTypeError: attention: expected tensors of one dtype, got float32 and float64",
       [&] { attention(q, q.to(DType::float64), q); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: losses") {
  const Tensor targets = zeros({2}, kInts);
  expect_errors({
      {"ShapeError: cross_entropy: expected logits [N, C] or [..., C], got [2]",
       [&] { cross_entropy(pair, targets); }},
      {"ShapeError: cross_entropy: expected targets [2], got [4]",
       [&] { cross_entropy(x, zeros({4}, kInts)); }},
      {"ShapeError: cross_entropy: expected targets [2, 5], or class_axis = 1 for logits [N, C, "
       "T], got [2, 3]",
       [&] { cross_entropy(zeros({2, 5, 3}), zeros({2, 3}, kInts)); }},
      {"ShapeError: cross_entropy: expected targets [2, 3], got [2, 5]",
       [&] { cross_entropy(zeros({2, 5, 3}), zeros({2, 5}, kInts), {.class_axis = 1}); }},
      {"IndexError: cross_entropy: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { cross_entropy(x, targets, {.class_axis = 2}); }},
      {"ShapeError: cross_entropy: expected probabilities [2, 3], or targets of int64 [2], got [2] of float32",
       [&] { cross_entropy(x, pair); }},
      {"IndexError: cross_entropy: expected indices in [0, 3) or -100, got 3 at [1]",
       [&] { cross_entropy(x, tensor<int64_t>({0, 3})); }},
      {"ValueError: cross_entropy: expected label smoothing in [0, 1], got 1.5",
       [&] { cross_entropy(x, targets, {.label_smoothing = 1.5}); }},
      {"ShapeError: mse_loss: expected tensors of one shape, got [2, 3] and [2]",
       [&] { mse_loss(x, pair); }},
      {"DTypeError: mse_loss: expected a floating dtype, got int64", [&] { mse_loss(ints, ints); }},
  });
}

TEST_CASE("wrong calls: dtypes that a kernel does not have") {
  expect_error<DTypeError>(
      "op: expected float32 or float64 or float16 or bfloat16, got int64",
      [] { dispatch_with_halves(DType::int64, "op", [](auto) {}); });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: indices") {
  const Tensor index = zeros({2}, kInts);
  expect_errors({
      {"DTypeError: embedding: expected indices of int64, got float32", [&] { embedding(x, pair); }},
      {"ShapeError: embedding: expected 2 axes, got [2]", [&] { embedding(pair, index); }},
      {"ShapeError: embedding: expected at most 7 axes, got [1, 1, 1, 1, 1, 1, 1, 2]",
       [&] { embedding(x, index.view({1, 1, 1, 1, 1, 1, 1, 2})); }},
      {"ShapeError: embedding_backward: expected at most 7 axes, got [1, 1, 1, 1, 1, 1, 1, 2]",
       [&] {
         const Shape most{1, 1, 1, 1, 1, 1, 1, 2};
         embedding_backward(pair.view(most), index.view(most), 3);
       }},
      {"IndexError: embedding: expected indices in [0, 2), got -1 at [1]",
       [&] { embedding(x, tensor<int64_t>({0, -1})); }},
      {"IndexError: gather: expected indices in [-3, 3), got 3 at [0, 1]",
       [&] { gather(x, 1, tensor(std::vector<int64_t>{0, 3}, {1, 2})); }},
      {"ShapeError: gather: expected an index that fits into [2, 3] on every axis but 0, got [2]",
       [&] { gather(x, 0, index); }},
      {"ShapeError: scatter_add: expected an index that fits into [2], got [2, 3]",
       [&] { scatter_add(x, 1, ints, pair); }},
      {"DTypeError: index_select: expected indices of int64, got float32", [&] { index_select(x, 0, pair); }},
      {"ShapeError: index_select: expected 1 axis, got [2, 3]", [&] { index_select(x, 0, ints); }},
      {"IndexError: one_hot: expected indices in [0, 2), got 2 at [0]",
       [] { one_hot(tensor<int64_t>({2}), 2); }},
      {"ValueError: one_hot: expected at least one class, got 0", [&] { one_hot(index, 0); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: pieces") {
  expect_errors({
      {"ValueError: cat: expected at least one tensor, got none", [] { cat({}); }},
      {"ShapeError: cat: expected shape [2, 3], got [2, 4]", [&] { cat({x, zeros({2, 4})}); }},
      {"ValueError: cat: expected a tensor, got an undefined tensor", [&] { cat({x, none}); }},
      {"ShapeError: stack: expected shape [2, 3], got [2]", [&] { stack({x, pair}); }},
      {"ShapeError: split: expected lengths that add up to 3, got 1, 1",
       [&] { split(x, std::vector<int64_t>{1, 1}, 1); }},
      {"ValueError: split: expected a length of at least 1, got 0", [&] { split(x, 0, 1); }},
      {"ValueError: chunk: expected at least one piece, got 0", [&] { chunk(x, 0); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: all gradients at once") {
  const std::vector<Tensor> tensors{x, x.mT()};
  const std::vector<Tensor> good{x};
  expect_errors({
      {"ValueError: global_norm: expected contiguous tensors, got strides [1, 3]",
       [&] { global_norm(tensors); }},
      {"ValueError: clip_by_norm_: expected a max_norm of at least 0, got -1",
       [&] { clip_by_norm_(good, scalar_tensor(1, kDoubles), -1); }},
      {"ValueError: clip_by_value_: expected a limit of at least 0, got -1",
       [&] { clip_by_value_(good, -1); }},
  });
}
