// Wrong calls of products, convolutions, pools and batch norm: type and whole text.
#include <doctest/doctest.h>

#include <sash/nn/layers/batch_norm.h>
#include <sash/nn/layers/conv.h>
#include <sash/nn/layers/pool.h>
#include <sash/ops/conv/conv.h>
#include <sash/ops/conv/pool.h>
#include <sash/ops/linalg/einsum.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/norm/batch_norm.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kHuge = int64_t{1} << 62;

struct Inputs {
  Tensor x = zeros({2, 3});
  Tensor y = zeros({3, 4});
  Tensor ints = zeros({2, 3}, kInts);
  Tensor none;
  Tensor image = zeros({2, 4, 5, 6});
  Tensor filter = zeros({6, 4, 3, 3});
  Tensor line = zeros({2, 4, 9});
  Tensor taps = zeros({6, 4, 3});
  Tensor four = zeros({4});
};

}  // namespace

// It would break a row with braces in its call over four lines.
// clang-format off

TEST_CASE_FIXTURE(Inputs, "wrong calls: bmm") {
  expect_errors({
      {"ShapeError: bmm: expected a [B, M, K] and b [B, K, N], got [2, 3] and [3, 4]",
       [&] { bmm(x, y); }},
      {"ShapeError: bmm: expected a [B, M, K] and b [B, K, N], got [2, 3, 4] and [2, 3, 4]",
       [] { bmm(zeros({2, 3, 4}), zeros({2, 3, 4})); }},
      {"ShapeError: bmm: expected a [B, M, K] and b [B, K, N], got [1, 3, 4] and [2, 4, 3]",
       [] { bmm(zeros({1, 3, 4}), zeros({2, 4, 3})); }},
      {"ShapeError: bmm: expected a [B, M, K] and b [B, K, N], got [2, 2, 3, 4] and [2, 4, 3]",
       [] { bmm(zeros({2, 2, 3, 4}), zeros({2, 4, 3})); }},
      {"DTypeError: bmm: expected tensors of one dtype, got float32 and float64",
       [] { bmm(zeros({2, 3, 4}), zeros({2, 4, 3}, kDoubles)); }},
      {"DTypeError: bmm: expected a dtype of numbers, got bool",
       [] { bmm(zeros({2, 3, 4}, kBools), zeros({2, 4, 3}, kBools)); }},
      {"ValueError: bmm: expected a tensor, got an undefined tensor", [&] { bmm(none, line); }},
      {"ValueError: bmm: expected a tensor, got an undefined tensor", [&] { bmm(line, none); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: einsum") {
  expect_errors({
      {"ValueError: einsum: expected an operand, got none", [] { einsum("ij->ij", {}); }},
      {"ValueError: einsum: expected 2 operands for \"ij,jk->ik\", got 1",
       [&] { einsum("ij,jk->ik", {x}); }},
      {"ValueError: einsum: expected 1 operands for \"ij\", got 2", [&] { einsum("ij", {x, y}); }},
      // Before the terms are read, which may be many.
      {"ValueError: einsum: expected 3 operands for \"i,1,\", got 1", [&] { einsum("i,1,", {x}); }},
      {"ShapeError: einsum: expected operand 0 with 3 axes for \"ijk\", got [2, 3]",
       [&] { einsum("ijk->i", {x}); }},
      {"ShapeError: einsum: expected operand 1 with 1 axis for \"j\", got [3, 4]",
       [&] { einsum("ij,j->i", {x, y}); }},
      {"ShapeError: einsum: expected operand 0 with at least 3 axes for \"...ijk\", got [2, 3]",
       [&] { einsum("...ijk->...i", {x}); }},
      {"ShapeError: einsum: expected one extent for \"j\", got 3 and 4",
       [&] { einsum("ij,kj->ik", {x, y}); }},
      {"ShapeError: einsum: expected axes of \"...\" that broadcast together, got 2 and 3",
       [&] { einsum("...j,...k->...", {x, y}); }},
      {"ShapeError: einsum: expected one extent for \"i\", got 2 and 3", [&] { einsum("ii", {x}); }},
      {"ValueError: einsum: expected a result of letters that operands have, each once, got "
       "\"ij->ik\"",
       [&] { einsum("ij->ik", {x}); }},
      {"ValueError: einsum: expected a result of letters that operands have, each once, got "
       "\"ij->ii\"",
       [&] { einsum("ij->ii", {x}); }},
      {"ValueError: einsum: expected letters, commas, \"...\" and one \"->\", got \"i-j\"",
       [&] { einsum("i-j", {x}); }},
      {"ValueError: einsum: expected letters, commas, \"...\" and one \"->\", got \"ij->i->j\"",
       [&] { einsum("ij->i->j", {x}); }},
      {"ValueError: einsum: expected letters, commas, \"...\" and one \"->\", got \"i1->i\"",
       [&] { einsum("i1->i", {x}); }},
      {"ValueError: einsum: expected letters, commas, \"...\" and one \"->\", got \"i..j\"",
       [&] { einsum("i..j", {x}); }},
      {"ValueError: einsum: expected letters, commas, \"...\" and one \"->\", got \"ij->i,j\"",
       [&] { einsum("ij->i,j", {x}); }},
      {"DTypeError: einsum: expected tensors of one dtype, got float32 and float64",
       [&] { einsum("ij,ij->", {x, zeros({2, 3}, kDoubles)}); }},
      {"DTypeError: einsum: expected a dtype of numbers, got bool",
       [&] { einsum("ij->", {zeros({2, 3}, kBools)}); }},
      {"ValueError: einsum: expected a tensor, got an undefined tensor",
       [&] { einsum("ij,jk->ik", {x, none}); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: conv2d") {
  expect_errors({
      {"ShapeError: conv2d: expected x [N, C, H, W] or [C, H, W], got [2, 3]",
       [&] { conv2d(x, filter); }},
      {"ShapeError: conv2d: expected weight [O, C / groups, KH, KW], got [6, 4, 3]",
       [&] { conv2d(image, taps); }},
      {"ShapeError: conv2d: expected channels C of x and O of weight that are split into 1 group, "
       "got [2, 4, 5, 6] and [6, 3, 3, 3]",
       [&] { conv2d(image, zeros({6, 3, 3, 3})); }},
      {"ShapeError: conv2d: expected channels C of x and O of weight that are split into 2 groups, "
       "got [2, 4, 5, 6] and [6, 4, 3, 3]",
       [&] { conv2d(image, filter, {}, {.groups = 2}); }},
      {"ShapeError: conv2d: expected channels C of x and O of weight that are split into 4 groups, "
       "got [2, 4, 5, 6] and [6, 1, 3, 3]",
       [&] { conv2d(image, zeros({6, 1, 3, 3}), {}, {.groups = 4}); }},
      {"ValueError: conv2d: expected at least 1 group, got 0",
       [&] { conv2d(image, filter, {}, {.groups = 0}); }},
      {"ShapeError: conv2d: expected shape [6], got [4]", [&] { conv2d(image, filter, four); }},
      {"ValueError: conv2d: expected a stride of at least 1, got 0",
       [&] { conv2d(image, filter, {}, {.stride = 0}); }},
      {"ValueError: conv2d: expected a stride of at least 1, got -2",
       [&] { conv2d(image, filter, {}, {.stride = {1, -2}}); }},
      {"ValueError: conv2d: expected a padding of at least 0, got -1",
       [&] { conv2d(image, filter, {}, {.padding = -1}); }},
      {"ValueError: conv2d: expected a dilation of at least 1, got 0",
       [&] { conv2d(image, filter, {}, {.dilation = {0, 1}}); }},
      {"ValueError: conv2d: expected a kernel of at least 1, got 0",
       [&] { conv2d(image, zeros({6, 4, 0, 3})); }},
      {"ShapeError: conv2d: expected a window of at most 5, the padded extent, got 6 for [2, 4, 5, "
       "6]",
       [&] { conv2d(image, zeros({6, 4, 6, 3})); }},
      {"ShapeError: conv2d: expected a window of at most 8, the padded extent, got 9 for [2, 4, 5, "
       "6]",
       [&] { conv2d(image, filter, {}, {.padding = 1, .dilation = {3, 4}}); }},
      {"DTypeError: conv2d: expected tensors of one dtype, got float32 and float64",
       [&] { conv2d(image, zeros({6, 4, 3, 3}, kDoubles)); }},
      {"DTypeError: conv2d: expected tensors of one dtype, got float32 and float64",
       [&] { conv2d(image, filter, zeros({6}, kDoubles)); }},
      {"DTypeError: conv2d: expected a floating dtype, got int64",
       [] { conv2d(zeros({1, 1, 3, 3}, kInts), zeros({1, 1, 3, 3}, kInts)); }},
      {"ValueError: conv2d: expected a tensor, got an undefined tensor",
       [&] { conv2d(none, filter); }},
      {"ValueError: conv2d: expected a tensor, got an undefined tensor",
       [&] { conv2d(image, none); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: conv1d") {
  expect_errors({
      {"ShapeError: conv1d: expected x [N, C, L] or [C, L], got [4]",
       [&] { conv1d(four, taps); }},
      {"ShapeError: conv1d: expected x [N, C, L] or [C, L], got [2, 4, 5, 6]",
       [&] { conv1d(image, taps); }},
      {"ShapeError: conv1d: expected weight [O, C / groups, K], got [6, 4, 3, 3]",
       [&] { conv1d(line, filter); }},
      {"ShapeError: conv1d: expected channels C of x and O of weight that are split into 1 group, "
       "got [2, 4, 9] and [6, 5, 3]",
       [&] { conv1d(line, zeros({6, 5, 3})); }},
      {"ShapeError: conv1d: expected channels C of x and O of weight that are split into 3 groups, "
       "got [2, 4, 9] and [6, 4, 3]",
       [&] { conv1d(line, taps, {}, {.groups = 3}); }},
      {"ValueError: conv1d: expected at least 1 group, got -1",
       [&] { conv1d(line, taps, {}, {.groups = -1}); }},
      {"ShapeError: conv1d: expected shape [6], got [4]", [&] { conv1d(line, taps, four); }},
      {"ValueError: conv1d: expected a stride of at least 1, got 0",
       [&] { conv1d(line, taps, {}, {.stride = 0}); }},
      {"ValueError: conv1d: expected a padding of at least 0, got -3",
       [&] { conv1d(line, taps, {}, {.padding = -3}); }},
      {"ValueError: conv1d: expected a dilation of at least 1, got -1",
       [&] { conv1d(line, taps, {}, {.dilation = -1}); }},
      {"ShapeError: conv1d: expected a window of at most 9, the padded extent, got 11 for [2, 4, 9]",
       [&] { conv1d(line, taps, {}, {.dilation = 5}); }},
      {"ShapeError: conv1d: expected a window of at most 9, the padded extent, got 2^63 or more for "
       "[2, 4, 9]",
       [&] { conv1d(line, taps, {}, {.dilation = kHuge}); }},
      {"ShapeError: conv1d: expected a window of at most 9, the padded extent, got "
       "9223372036854775807 for [2, 4, 9]",
       [&] { conv1d(line, taps, {}, {.dilation = kHuge - 1}); }},
      {"ShapeError: conv1d: expected padded extents below 2^63, got [2, 4, 9] with a padding of "
       "4611686018427387904",
       [&] { conv1d(line, taps, {}, {.padding = kHuge}); }},
      {"ValueError: conv1d: expected a kernel of at least 1, got 0",
       [&] { conv1d(line, zeros({6, 4, 0})); }},
      {"DTypeError: conv1d: expected tensors of one dtype, got float32 and float64",
       [&] { conv1d(line, zeros({6, 4, 3}, kDoubles)); }},
      {"ValueError: conv1d: expected a tensor, got an undefined tensor",
       [&] { conv1d(line, none); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: pools") {
  const Tensor counts = zeros({2, 4, 5, 6}, kInts);
  expect_errors({
      {"ShapeError: max_pool2d: expected x [N, C, H, W] or [C, H, W], got [2, 3]",
       [&] { max_pool2d(x, 2); }},
      {"ShapeError: avg_pool2d: expected x [N, C, H, W] or [C, H, W], got [4]",
       [&] { avg_pool2d(four, 2); }},
      {"ShapeError: max_pool1d: expected x [N, C, L] or [C, L], got [2, 4, 5, 6]",
       [&] { max_pool1d(image, 2); }},
      {"ShapeError: avg_pool1d: expected x [N, C, L] or [C, L], got [4]",
       [&] { avg_pool1d(four, 2); }},
      {"ValueError: max_pool2d: expected a kernel of at least 1, got 0",
       [&] { max_pool2d(image, 0); }},
      {"ValueError: avg_pool1d: expected a kernel of at least 1, got -1",
       [&] { avg_pool1d(line, -1); }},
      {"ValueError: max_pool2d: expected a stride of at least 1, got 0",
       [&] { max_pool2d(image, 2, {.stride = HeightWidth(1, 0)}); }},
      {"ValueError: avg_pool2d: expected a stride of at least 1, got 0",
       [&] { avg_pool2d(image, 2, {.stride = 0}); }},
      {"ValueError: max_pool1d: expected a padding of at least 0, got -1",
       [&] { max_pool1d(line, 2, {.padding = -1}); }},
      {"ValueError: max_pool2d: expected a padding of at most half the kernel, got 2 for 3",
       [&] { max_pool2d(image, 3, {.padding = {1, 2}}); }},
      {"ValueError: avg_pool1d: expected a padding of at most half the kernel, got 1 for 1",
       [&] { avg_pool1d(line, 1, {.padding = 1}); }},
      {"ValueError: avg_pool1d: expected a padding of at most half the kernel, got "
       "4611686018427387904 for 2",
       [&] { avg_pool1d(line, 2, {.padding = kHuge}); }},
      {"ShapeError: max_pool2d: expected a window of at most 5, the padded extent, got 6 for [2, 4, "
       "5, 6]",
       [&] { max_pool2d(image, 6); }},
      {"ShapeError: avg_pool1d: expected a window of at most 9, the padded extent, got 10 for [2, 4, "
       "9]",
       [&] { avg_pool1d(line, 10); }},
      {"DTypeError: max_pool2d: expected a floating dtype, got int64",
       [&] { max_pool2d(counts, 2); }},
      {"DTypeError: avg_pool2d: expected a floating dtype, got int64",
       [&] { avg_pool2d(counts, 2); }},
      {"ValueError: max_pool1d: expected a tensor, got an undefined tensor",
       [&] { max_pool1d(none, 2); }},
      {"ValueError: avg_pool2d: expected a tensor, got an undefined tensor",
       [&] { avg_pool2d(none, 2); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: batch_norm") {
  const Tensor mean = zeros({4}), var = ones({4});
  const Tensor doubles = zeros({4}, kDoubles), counts = zeros({4}, kInts);
  expect_errors({
      {"ShapeError: batch_norm: expected at least 2 axes, got [4]",
       [&] { batch_norm(four, mean, var); }},
      {"ShapeError: batch_norm: expected shape [3], got [4]", [&] { batch_norm(x, mean, var); }},
      {"ShapeError: batch_norm: expected shape [4], got [3]",
       [&] { batch_norm(line, mean, zeros({3})); }},
      {"ShapeError: batch_norm: expected shape [4], got [1, 4]",
       [&] { batch_norm(line, mean, var, zeros({1, 4})); }},
      {"ShapeError: batch_norm: expected shape [4], got [5]",
       [&] { batch_norm(line, mean, var, four, zeros({5})); }},
      {"DTypeError: batch_norm: expected tensors of one dtype, got float32 and float64",
       [&] { batch_norm(line, mean, var, doubles); }},
      {"DTypeError: batch_norm: expected a floating dtype, got int64",
       [&] { batch_norm(line, counts, var); }},
      {"DTypeError: batch_norm: expected a floating dtype, got int64",
       [&] { batch_norm(ints, mean, var); }},
      {"ValueError: batch_norm: expected running statistics, or training, got neither",
       [&] { batch_norm(line, {}, {}); }},
      {"ValueError: batch_norm: expected running statistics, or training, got neither",
       [&] { batch_norm(line, mean, {}); }},
      {"ValueError: batch_norm: expected eps of at least 0, got -1",
       [&] { batch_norm(line, mean, var, {}, {}, {.eps = -1}); }},
      {"ValueError: batch_norm: expected a momentum in [0, 1], got 2",
       [&] { batch_norm(line, mean, var, {}, {}, {.training = true, .momentum = 2}); }},
      {"ShapeError: batch_norm: expected at least two elements a channel in training, got [1, 4]",
       [&] { batch_norm(zeros({1, 4}), mean, var, {}, {}, {.training = true}); }},
      {"ValueError: batch_norm: expected a tensor, got an undefined tensor",
       [&] { batch_norm(none, mean, var); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: modules of windows") {
  nn::Conv2d conv(4, 6, 3);
  nn::BatchNorm2d norm(4);
  nn::BatchNorm1d norm1(4);
  expect_errors({
      {"ValueError: Conv2d: expected a positive number of channels, got 0",
       [] { nn::Conv2d(0, 6, 3); }},
      {"ValueError: Conv2d: expected a positive number of channels, got -6",
       [] { nn::Conv2d(4, -6, 3); }},
      {"ValueError: Conv2d: expected a positive kernel, got 0", [] { nn::Conv2d(4, 6, {3, 0}); }},
      {"ValueError: Conv2d: expected a positive number of groups, got 0",
       [] { nn::Conv2d(4, 6, 3, {.groups = 0}); }},
      {"ValueError: Conv2d: expected channels that are a multiple of 4 groups, got 4 and 6",
       [] { nn::Conv2d(4, 6, 3, {.groups = 4}); }},
      {"ValueError: Conv1d: expected channels that are a multiple of 3 groups, got 4 and 6",
       [] { nn::Conv1d(4, 6, 3, {.groups = 3}); }},
      {"ValueError: Conv1d: expected a positive kernel, got -1", [] { nn::Conv1d(4, 6, -1); }},
      {"ShapeError: conv2d: expected channels C of x and O of weight that are split into 1 group, "
       "got [2, 3, 5, 5] and [6, 4, 3, 3]",
       [&] { conv(zeros({2, 3, 5, 5})); }},
      {"ValueError: BatchNorm2d: expected a positive number of channels, got 0",
       [] { nn::BatchNorm2d(0); }},
      {"ValueError: BatchNorm1d: expected eps > 0, got 0", [] { nn::BatchNorm1d(4, {.eps = 0}); }},
      {"ValueError: BatchNorm1d: expected a momentum in [0, 1], got -1",
       [] { nn::BatchNorm1d(4, {.momentum = -1}); }},
      {"ShapeError: BatchNorm2d: expected x [N, 4, H, W], got [2, 4, 9]", [&] { norm(line); }},
      {"ShapeError: BatchNorm2d: expected x [N, 4, H, W], got [2, 3, 5, 5]",
       [&] { norm(zeros({2, 3, 5, 5})); }},
      {"ShapeError: BatchNorm1d: expected x [N, 4] or [N, 4, L], got [2, 4, 5, 6]",
       [&] { norm1(image); }},
      {"ShapeError: BatchNorm1d: expected x [N, 4] or [N, 4, L], got [4]", [&] { norm1(four); }},
      {"ValueError: BatchNorm2d: expected a tensor, got an undefined tensor", [&] { norm(none); }},
  });
  CHECK(norm.num_batches_tracked.item<int64_t>() == 0);
}
