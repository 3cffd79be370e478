// Wrong calls of statistics by rank, distances, images and lists of modules.
#include <doctest/doctest.h>

#include <sash/sash.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

// It would break a row with braces in its call over four lines.
// clang-format off

TEST_CASE("wrong calls: elementwise words") {
  const Tensor x = zeros({2, 3}), ints = zeros({2, 3}, kInts), none;
  expect_errors({
      {"DTypeError: isinf: expected a floating dtype, got int64", [&] { isinf(ints); }},
      {"ValueError: log2: expected a tensor, got an undefined tensor", [&] { log2(none); }},
      {"DTypeError: leaky_relu: expected a floating dtype, got int64", [&] { leaky_relu(ints); }},
      {"ValueError: elu: expected a tensor, got an undefined tensor", [&] { elu(none); }},
      {"ShapeError: atan2: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { atan2(x, zeros({2})); }},
      {"DTypeError: isclose: expected tensors of one dtype, got float32 and int64",
       [&] { isclose(x, ints); }},
      {"ValueError: isclose: expected rtol of at least 0, got -1",
       [&] { isclose(x, x, {.rtol = -1}); }},
      {"ValueError: isclose: expected atol of at least 0, got -1",
       [&] { allclose(x, x, {.atol = -1}); }},
      {"ShapeError: isclose: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { allclose(x, zeros({2})); }},
  });
}

TEST_CASE("wrong calls: words of order, counts and choices") {
  const Tensor x = zeros({2, 3}), ints = zeros({3}, kInts), bools = zeros({2, 3}, kBools), none;
  expect_errors({
      {"ValueError: cumprod: expected a tensor, got an undefined tensor", [&] { cumprod(none, 0); }},
      {"IndexError: cumprod: expected an axis in [-2, 2) for rank 2, got 2", [&] { cumprod(x, 2); }},
      {"DTypeError: median: expected a dtype of numbers, got bool", [&] { median(bools, 0); }},
      {"ShapeError: median: expected an axis that is not empty, got [2, 0]",
       [] { median(zeros({2, 0}), 1); }},
      {"ShapeError: median: expected at least 1 axis, got []", [] { median(zeros({}), 0); }},
      {"ShapeError: median: expected an axis that is not empty, got [0]",
       [] { median(zeros({0}, kInts)); }},
      {"DTypeError: quantile: expected a floating dtype, got int64", [&] { quantile(ints, 0.5); }},
      {"ValueError: quantile: expected q in [0, 1], got 1.5", [&] { quantile(x, 1.5); }},
      {"ValueError: quantile: expected at least one q, got none",
       [&] { quantile(x, std::vector<double>{}); }},
      {"ShapeError: quantile: expected an axis that is not empty, got [0]",
       [] { quantile(zeros({0}), 0.5); }},
      {"IndexError: quantile: expected an axis in [-2, 2) for rank 2, got 3",
       [&] { quantile(x, 0.5, {.axis = 3}); }},
      {"DTypeError: bincount: expected integers, got float32", [&] { bincount(x); }},
      {"ShapeError: bincount: expected 1 axis, got [2, 3]",
       [] { bincount(zeros({2, 3}, kInts)); }},
      {"ValueError: bincount: expected elements of at least 0, got -2",
       [] { bincount(tensor({3, -2})); }},
      {"ValueError: bincount: expected min_length of at least 0, got -1",
       [&] { bincount(ints, {}, -1); }},
      {"ShapeError: bincount: expected shape [3], got [2]", [&] { bincount(ints, zeros({2})); }},
      {"DTypeError: masked_select: expected a mask of bool, got float32",
       [&] { masked_select(x, x); }},
      {"ShapeError: masked_select: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { masked_select(x, zeros({2}, kBools)); }},
  });
}

TEST_CASE("wrong calls: words of matrices and norms") {
  const Tensor x = zeros({2, 3}), line = zeros({3}), none;
  expect_errors({
      {"ShapeError: diag: expected x [N] or [R, C], got []", [] { diag(zeros({})); }},
      {"ValueError: diag: expected a diagonal in [-2, 3], got 4", [&] { diag(x, 4); }},
      {"ShapeError: outer: expected 1 axis, got [2, 3]", [&] { outer(x, line); }},
      {"ValueError: outer: expected a tensor, got an undefined tensor", [&] { outer(line, none); }},
      {"ShapeError: cdist: expected a [..., M, D] and b [..., N, D] with one D, got [2, 3] and [2, 4]",
       [&] { cdist(x, zeros({2, 4})); }},
      {"ShapeError: cdist: expected at least 2 axes, got [3]", [&] { cdist(x, line); }},
      {"ValueError: cdist: expected p of at least 0, got -1", [&] { cdist(x, x, -1); }},
      {"DTypeError: cdist: expected tensors of one dtype, got float32 and float64",
       [&] { cdist(x, zeros({2, 3}, kDoubles)); }},
      {"DTypeError: normalize: expected a floating dtype, got int64",
       [] { normalize(zeros({2, 3}, kInts)); }},
      {"ValueError: normalize: expected eps of at least 0, got -1",
       [&] { normalize(x, {.eps = -1}); }},
      {"ValueError: group_norm: expected at least 1 group, got 0", [&] { group_norm(x, 0); }},
      {"ShapeError: group_norm: expected channels in 2 groups, got [2, 3]",
       [&] { group_norm(x, 2); }},
      {"ShapeError: group_norm: expected at least 2 axes, got [3]", [&] { group_norm(line, 1); }},
      {"ShapeError: group_norm: expected shape [3], got [2]",
       [&] { group_norm(x, 3, zeros({2})); }},
      {"ValueError: group_norm: expected eps of at least 0, got -1",
       [&] { group_norm(x, 3, {}, {}, -1); }},
  });
}

TEST_CASE("wrong calls: sizes of images") {
  const Tensor x = zeros({1, 4, 3, 3}), weight = zeros({4, 2, 2, 2});
  expect_errors({
      {"ShapeError: conv_transpose2d: expected x [N, C, H, W] or [C, H, W], got [3, 3]",
       [&] { conv_transpose2d(zeros({3, 3}), weight); }},
      {"ShapeError: conv_transpose2d: expected weight [C, O / groups, KH, KW], with C channels of x in 1 group, got [1, 4, 3, 3] and [3, 2, 2, 2]",
       [&] { conv_transpose2d(x, zeros({3, 2, 2, 2})); }},
      {"ShapeError: conv_transpose2d: expected weight [C, O / groups, KH, KW], with C channels of x in 3 groups, got [1, 4, 3, 3] and [4, 2, 2, 2]",
       [&] { conv_transpose2d(x, weight, {}, {.groups = 3}); }},
      {"ValueError: conv_transpose2d: expected at least 1 group, got 0",
       [&] { conv_transpose2d(x, weight, {}, {.groups = 0}); }},
      {"ValueError: conv_transpose2d: expected an output_padding below the stride of 2, got 2",
       [&] { conv_transpose2d(x, weight, {}, {.stride = 2, .output_padding = 2}); }},
      {"ShapeError: conv_transpose2d: expected shape [2], got [4]",
       [&] { conv_transpose2d(x, weight, zeros({4})); }},
      {"ShapeError: conv_transpose2d: expected extents whose result is not empty, got 3 along axis -2",
       [&] { conv_transpose2d(x, weight, {}, {.padding = 2}); }},
      {"ValueError: adaptive_avg_pool2d: expected a size of at least 1, got 0",
       [&] { adaptive_avg_pool2d(x, 0); }},
      {"ShapeError: adaptive_avg_pool2d: expected x [N, C, H, W] or [C, H, W] with planes that are not empty, got [3]",
       [] { adaptive_avg_pool2d(zeros({3}), 1); }},
      {"ValueError: interpolate: expected either a size or a scale_factor, got neither",
       [&] { interpolate(x, {}); }},
      {"ValueError: interpolate: expected either a size or a scale_factor, got both",
       [&] { interpolate(x, {.size = 2, .scale_factor = 2}); }},
      {"ValueError: interpolate: expected a size of at least 1, got 0",
       [&] { interpolate(x, {.size = HeightWidth(4, 0)}); }},
      {"ValueError: interpolate: expected a positive scale_factor, got -1",
       [&] { interpolate(x, {.scale_factor = -1}); }},
      {"ValueError: interpolate: expected align_corners of bilinear, got of nearest",
       [&] { interpolate(x, {.size = 2, .align_corners = true}); }},
      {"ShapeError: interpolate: expected x [N, C, H, W] with planes that are not empty, got [4, 3]",
       [] { interpolate(zeros({4, 3}), {.size = 2}); }},
  });
}

TEST_CASE("wrong calls: layers of images, lists and decoders") {
  nn::ModuleDict<nn::Linear> heads;
  heads.emplace("value", 2, 1);
  nn::ParameterList list;
  expect_errors({
      {"ValueError: GroupNorm: expected channels that are a multiple of the groups, got 5 and 2",
       [] { nn::GroupNorm(2, 5); }},
      {"ValueError: GroupNorm: expected eps > 0, got 0", [] { nn::GroupNorm(1, 2, {.eps = 0}); }},
      {"ShapeError: GroupNorm: expected x [N, 4, ...], got [2, 3]",
       [] { nn::GroupNorm(2, 4)(zeros({2, 3})); }},
      {"ValueError: ConvTranspose2d: expected a positive number of channels, got 0",
       [] { nn::ConvTranspose2d(0, 2, 3); }},
      {"IndexError: ModuleDict: expected one of value, got policy", [&] { heads["policy"]; }},
      {"IndexError: ModuleDict: expected a module, of which there is none, got x",
       [] { nn::ModuleDict<>()["x"]; }},
      {"ValueError: ModuleDict.register_module: expected a new name, got 'value', which is taken",
       [&] { heads.emplace("value", 2, 1); }},
      {"IndexError: ParameterList: expected an index below 0, got 0", [&] { list[0]; }},
      {"ValueError: TransformerDecoder: expected a positive number of layers, got 0",
       [] { nn::TransformerDecoder({.dim = 4, .heads = 2, .layers = 0}); }},
  });
}
// clang-format on
