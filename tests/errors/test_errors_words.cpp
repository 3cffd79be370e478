// Wrong calls of operators, members, factories and ops of shape. Errors name the op and are thrown
// before any work.
#include <doctest/doctest.h>

#include <limits>

#include <sash/sash.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Inputs {
  Tensor x = zeros({2, 3});
  Tensor pair = zeros(2);
  Tensor ints = zeros({2, 3}, kInts);
  Tensor bytes = zeros({2, 3}, {.dtype = DType::uint8});
  Tensor bools = zeros({2, 3}, kBools);
  Tensor scalar = zeros({});
  Tensor deep = zeros({1, 1, 1, 1, 1, 1, 1, 1});
  Tensor leaf = zeros({2, 3}, {.requires_grad = true});
  Tensor none;
};

}  // namespace

// It would break a row with braces in its call over four lines.
// clang-format off

TEST_CASE_FIXTURE(Inputs, "wrong calls: operators of arithmetic") {
  expect_errors({
      {"ShapeError: remainder: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { x % pair; }},
      {"ValueError: remainder: expected a tensor, got an undefined tensor", [&] { none % x; }},
      {"ValueError: remainder: expected a tensor, got an undefined tensor", [&] { x % none; }},
      {"DTypeError: remainder: expected a dtype of numbers, got bool",
       [&] { bools % bools; }},
      {"ValueError: remainder: expected a value of uint8, got 300", [&] { bytes % 300; }},
      {"ValueError: remainder: expected a divisor other than 0, got 0", [&] { ints % 0; }},
      {"ValueError: floor_divide: expected a divisor other than 0, got 0",
       [&] { floor_divide(ints, 0); }},
      {"ValueError: floor_divide: expected a tensor, got an undefined tensor",
       [&] { floor_divide(none, 2); }},
      {"ShapeError: floor_divide: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { floor_divide(x, pair); }},
      {"ValueError: remainder: expected a tensor, got an undefined tensor", [&] { none % 2; }},
      {"ValueError: remainder: expected a value of int32, got 5000000000",
       [&] { zeros({2}, {.dtype = DType::int32}) % 5000000000; }},
      {"ValueError: remainder: expected a value of int32, got 5000000000",
       [&] { 5000000000 % zeros({2}, {.dtype = DType::int32}); }},
      {"ValueError: remainder: expected a tensor, got an undefined tensor", [&] { 2 % none; }},
      {"ValueError: sub: expected a tensor, got an undefined tensor", [&] { 2 - none; }},
      {"ValueError: div: expected a tensor, got an undefined tensor", [&] { 2 / none; }},
      {"ValueError: mul: expected a tensor, got an undefined tensor", [&] { 2 * none; }},
      {"ValueError: add: expected a tensor, got an undefined tensor", [&] { none + 2; }},
      {"ValueError: sub: expected a tensor, got an undefined tensor", [&] { sub(none, 2); }},
      {"ValueError: sub: expected a value of int32, got 5000000000",
       [&] { zeros({2}, {.dtype = DType::int32}) - 5000000000; }},
      {"ValueError: pow: expected a tensor, got an undefined tensor", [&] { pow(2, none); }},
      {"DTypeError: pow: expected a dtype of numbers, got bool", [&] { pow(bools, bools); }},
      {"ValueError: maximum: expected a tensor, got an undefined tensor",
       [&] { maximum(none, 2); }},
      {"ValueError: minimum: expected a tensor, got an undefined tensor",
       [&] { minimum(x, none); }},
      {"ValueError: maximum: expected a value of uint8, got 300", [&] { maximum(bytes, 300); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: operators of comparison and logic") {
  expect_errors({
      {"ShapeError: eq: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { return x == pair; }},
      {"ValueError: eq: expected a tensor, got an undefined tensor", [&] { return none == x; }},
      {"ValueError: eq: expected a tensor, got an undefined tensor", [&] { return none == 0; }},
      {"ValueError: eq: expected a tensor, got an undefined tensor", [&] { return 0 == none; }},
      {"ShapeError: ne: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { return x != pair; }},
      {"ValueError: ne: expected a tensor, got an undefined tensor", [&] { return none != 0; }},
      {"ShapeError: lt: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { return x < pair; }},
      {"ValueError: lt: expected a tensor, got an undefined tensor", [&] { return none < 0; }},
      {"ValueError: gt: expected a tensor, got an undefined tensor", [&] { return 0 < none; }},
      {"ShapeError: le: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { return x <= pair; }},
      {"ValueError: ge: expected a tensor, got an undefined tensor", [&] { return 0 <= none; }},
      {"ShapeError: gt: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { return x > pair; }},
      {"ValueError: gt: expected a tensor, got an undefined tensor", [&] { return none > 0; }},
      {"ShapeError: ge: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { return x >= pair; }},
      {"ValueError: ge: expected a tensor, got an undefined tensor", [&] { return none >= none; }},
      {"DTypeError: logical_not: expected bool, got float32", [&] { ~x; }},
      {"ValueError: logical_not: expected a tensor, got an undefined tensor", [&] { ~none; }},
      {"DTypeError: logical_and: expected bool, got float32", [&] { x & x; }},
      {"DTypeError: logical_and: expected tensors of one dtype, got bool and float32",
       [&] { bools & x; }},
      {"ShapeError: logical_and: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { bools & zeros({2}, kBools); }},
      {"DTypeError: logical_or: expected bool, got int64", [&] { ints | ints; }},
      {"ValueError: logical_or: expected a tensor, got an undefined tensor", [&] { none | bools; }},
      {"DTypeError: isfinite: expected a floating dtype, got int64", [&] { isfinite(ints); }},
      {"ValueError: isfinite: expected a tensor, got an undefined tensor",
       [&] { none.isfinite(); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: operators in place") {
  const Tensor wide = zeros({1, 3}).expand({2, 3});
  expect_errors({
      {"ShapeError: add_: expected shapes that broadcast together, got [2] and [2, 3]",
       [&] { pair += x; }},
      {"ValueError: add_: expected a tensor, got an undefined tensor", [&] { x += none; }},
      {"ValueError: add_: expected a tensor, got an undefined tensor", [&] { none += 1; }},
      {"DTypeError: add_: expected a result that may be cast to int64, got float32",
       [&] { ints += 0.5; }},
      {"DTypeError: add_: expected a result that may be cast to int64, got float32",
       [&] { ints += x; }},
      {"DTypeError: add_: expected a result that may be cast to bool, got int64",
       [&] { bools += 1; }},
      {"AutogradError: add_: a leaf that requires grad cannot be written in place while "
       "recording; use NoGradGuard or write to a result of it",
       [&] { leaf += 1; }},
      {"ValueError: add_: expected an element of memory for each element of the tensor, got an "
       "expanded tensor of shape [2, 3]",
       [&] { Tensor y = wide; y += 1; }},
      {"ShapeError: sub_: expected shapes that broadcast together, got [2] and [2, 3]",
       [&] { pair -= x; }},
      {"ValueError: sub_: expected a tensor, got an undefined tensor", [&] { none -= 1; }},
      {"DTypeError: sub_: expected a result that may be cast to int64, got float32",
       [&] { ints -= 0.5; }},
      {"DTypeError: sub_: expected a result that may be cast to bool, got int64",
       [&] { bools -= 1; }},
      {"AutogradError: sub_: a leaf that requires grad cannot be written in place while "
       "recording; use NoGradGuard or write to a result of it",
       [&] { leaf -= 1; }},
      {"ValueError: sub_: expected a value of int32, got 5000000000",
       [&] { zeros({2}, {.dtype = DType::int32}).sub_(5000000000); }},
      {"ShapeError: mul_: expected shapes that broadcast together, got [2] and [2, 3]",
       [&] { pair *= x; }},
      {"DTypeError: mul_: expected a result that may be cast to int64, got float32",
       [&] { ints *= 1.5; }},
      {"AutogradError: mul_: a leaf that requires grad cannot be written in place while "
       "recording; use NoGradGuard or write to a result of it",
       [&] { leaf *= x; }},
      {"ShapeError: div_: expected shapes that broadcast together, got [2] and [2, 3]",
       [&] { pair /= x; }},
      {"DTypeError: div_: expected a floating dtype, got int64", [&] { ints /= 2; }},
      {"ValueError: div_: expected a tensor, got an undefined tensor", [&] { none /= 2; }},
      {"AutogradError: div_: a leaf that requires grad cannot be written in place while "
       "recording; use NoGradGuard or write to a result of it",
       [&] { leaf /= 2; }},
      {"ValueError: div_: expected an element of memory for each element of the tensor, got an "
       "expanded tensor of shape [2, 3]",
       [&] { Tensor y = wide; y /= 2; }},
      {"ValueError: masked_fill_: expected a tensor, got an undefined tensor",
       [&] { none.masked_fill_(bools, 1); }},
      {"ValueError: masked_fill_: expected a tensor, got an undefined tensor",
       [&] { x.masked_fill_(none, 1); }},
      {"DTypeError: masked_fill_: expected bool, got float32", [&] { x.masked_fill_(x, 1); }},
      {"ShapeError: masked_fill_: expected shapes that broadcast together, got [2] and [2, 3]",
       [&] { pair.masked_fill_(bools, 1); }},
      {"ValueError: masked_fill_: expected a value of int64, got 0.5",
       [&] { ints.masked_fill_(bools, 0.5); }},
      {"AutogradError: masked_fill_: a leaf that requires grad cannot be written in place while "
       "recording; use NoGradGuard or write to a result of it",
       [&] { leaf.masked_fill_(bools, 0); }},
      {"ValueError: masked_fill_: expected an element of memory for each element of the tensor, "
       "got an expanded tensor of shape [2, 3]",
       [&] { Tensor y = wide; y.masked_fill_(bools, 0); }},
      {"ValueError: add_: expected an element of memory for each element of the tensor, got "
       "overlapping windows of shape [3, 3]",
       [&] { Tensor y = zeros(5).unfold(0, 3, 1); y += 1; }},
      {"ValueError: add_: expected an element of memory for each element of the tensor, got "
       "overlapping windows of shape [1, 3, 3]",
       [&] { Tensor y = zeros(5).unfold(0, 3, 1).expand({1, 3, 3}); y += 1; }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: rows of one tensor, and scalars") {
  expect_errors({
      {"DTypeError: softplus: expected a floating dtype, got int64", [&] { softplus(ints); }},
      {"ValueError: softplus: expected a tensor, got an undefined tensor",
       [&] { none.softplus(); }},
      {"DTypeError: ceil: expected a floating dtype, got int64", [&] { ceil(ints); }},
      {"DTypeError: round: expected a floating dtype, got bool", [&] { round(bools); }},
      {"ValueError: round: expected a tensor, got an undefined tensor", [&] { none.round(); }},
      {"DTypeError: silu: expected a floating dtype, got int64", [&] { ints.silu(); }},
      {"ValueError: exp: expected a tensor, got an undefined tensor", [&] { none.exp(); }},
      {"DTypeError: abs: expected a dtype of numbers, got bool",
       [&] { bools.abs(); }},
      {"ValueError: gelu: expected a tensor, got an undefined tensor", [&] { none.gelu(); }},
      {"ValueError: clamp: expected low <= high, got 2 and 1", [&] { x.clamp(2, 1); }},
      {"DTypeError: where: expected bool, got float32", [&] { where(x, x, 0); }},
      {"ValueError: where: expected a tensor, got an undefined tensor", [&] { where(none, x, 0); }},
      {"ValueError: where: expected a tensor, got an undefined tensor",
       [&] { where(bools, none, 0); }},
      {"ValueError: where: expected a tensor, got an undefined tensor",
       [&] { where(bools, 0, none); }},
      {"ValueError: where: expected a tensor, got an undefined tensor", [&] { where(none, 0, 1); }},
      {"DTypeError: where: expected bool, got float32", [&] { where(x, 0.5, 1); }},
      {"ShapeError: where: expected shapes that broadcast together, got [2, 3] and [2]",
       [&] { where(bools, pair, 0); }},
      {"ValueError: where: expected a value of uint8, got 300", [&] { where(bools, bytes, 300); }},
      {"ValueError: where: expected a value of uint8, got -1", [&] { where(bools, -1, bytes); }},
      {"DTypeError: masked_fill: expected bool, got int64", [&] { x.masked_fill(ints, 0); }},
      {"ValueError: pow: expected an exponent of at least 0 for integers, got -1",
       [&] { ints.pow(-1); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: members that are reductions and rows") {
  expect_errors({
      {"IndexError: sum: expected an axis in [-2, 2) for rank 2, got 2", [&] { x.sum(2); }},
      {"ValueError: sum: expected each axis once, got [0, 0]", [&] { x.sum({0, 0}); }},
      {"ValueError: sum: expected a tensor, got an undefined tensor", [&] { none.sum(); }},
      {"DTypeError: mean: expected a floating dtype, got int64", [&] { ints.mean(); }},
      {"DTypeError: var: expected a floating dtype, got int64", [&] { ints.var(); }},
      {"IndexError: var: expected an axis in [-2, 2) for rank 2, got -3", [&] { x.var(-3); }},
      {"ShapeError: amax: expected reduced axes that are not empty, got [0, 3]",
       [&] { zeros({0, 3}).amax(0); }},
      {"ValueError: amin: expected a tensor, got an undefined tensor", [&] { none.amin(); }},
      {"IndexError: argmax: expected an axis in [-2, 2) for rank 2, got 5", [&] { x.argmax(5); }},
      {"ValueError: argmin: expected a tensor, got an undefined tensor", [&] { none.argmin(); }},
      {"DTypeError: logsumexp: expected a floating dtype, got int64", [&] { ints.logsumexp(); }},
      {"IndexError: cumsum: expected an axis in [-2, 2) for rank 2, got 2", [&] { x.cumsum(2); }},
      {"DTypeError: softmax: expected a floating dtype, got int64", [&] { ints.softmax(); }},
      {"IndexError: log_softmax: expected an axis in [-2, 2) for rank 2, got 3",
       [&] { x.log_softmax(3); }},
      {"ShapeError: matmul: expected a [..., M, K] and b [..., K, N] with one K, got [2, 3] and "
       "[2]",
       [&] { x.matmul(pair); }},
      {"ValueError: matmul: expected a tensor, got an undefined tensor", [&] { none.matmul(x); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: making") {
  Generator generator;
  expect_errors({
      {"ValueError: linspace: expected at least 0 steps, got -1", [&] { linspace(0, 1, -1); }},
      {"ValueError: linspace: expected ends with a finite difference, got -1e+308 and 1e+308",
       [&] { linspace(-1e308, 1e308, 3); }},
      {"DTypeError: linspace: expected a floating dtype, got int64",
       [&] { linspace(0, 1, 3, kInts); }},
      {"ValueError: arange: expected finite bounds and a step, got one that is infinite or NaN",
       [&] { arange(kNaN); }},
      {"ValueError: arange: expected a value of uint8, got 299",
       [&] { arange(300, {.dtype = DType::uint8}); }},
      {"ValueError: full: expected a value of int64, got 1e+30", [&] { full_like(ints, 1e30); }},
      {"ValueError: full: expected a value of uint8, got -1", [&] { full_like(bytes, -1); }},
      {"ValueError: tensor: expected a defined tensor, got an undefined one",
       [&] { full_like(none, 1); }},
      {"DTypeError: rand: expected a floating dtype, got int64", [&] { rand_like(ints); }},
      {"ValueError: tensor: expected a defined tensor, got an undefined one",
       [&] { rand_like(none); }},
      {"DTypeError: randn: expected a floating dtype, got bool", [&] { randn_like(bools); }},
      {"DTypeError: rand: expected a floating dtype, got int64",
       [&] { rand(3, generator, kInts); }},
      {"DTypeError: randn: expected a floating dtype, got bool",
       [&] { randn(3, generator, kBools); }},
      {"ShapeError: shape: expected extents of at least 0, got [-1]",
       [&] { randn({-1}, generator); }},
      {"ValueError: randint: expected low < high, got 3 and 3",
       [&] { randint(3, 3, 4, generator); }},
      {"DTypeError: randint: expected int64 or int32, got float32",
       [&] { randint(0, 3, 4, generator, {.dtype = DType::float32}); }},
      {"ValueError: randperm: expected n of at least 0, got -1", [&] { randperm(-1); }},
      {"DTypeError: randperm: expected int64, got float32",
       [&] { randperm(3, generator, {.dtype = DType::float32}); }},
      {"ShapeError: shape: expected extents of at least 0, got [-1]", [&] { zeros(-1); }},
      {"ShapeError: tril: expected at least 2 axes, got [2]", [&] { tril(pair); }},
      {"ValueError: triu: expected a tensor, got an undefined tensor", [&] { triu(none); }},
      {"ShapeError: tril: expected at least 2 axes, got []", [&] { scalar.tril(); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: shape") {
  expect_errors({
      {"ValueError: flip: expected a tensor, got an undefined tensor", [&] { flip(none, 0); }},
      {"IndexError: flip: expected an axis in [-2, 2) for rank 2, got 2", [&] { flip(x, 2); }},
      {"ValueError: flip: expected each axis once, got [0, -2]", [&] { flip(x, {0, -2}); }},
      {"ValueError: roll: expected a tensor, got an undefined tensor", [&] { roll(none, 1, 0); }},
      {"ShapeError: roll: expected a shift for each axis, got [1] for axes [0, 1]",
       [&] { roll(x, 1, {0, 1}); }},
      {"IndexError: roll: expected an axis in [-2, 2) for rank 2, got -3", [&] { roll(x, 1, -3); }},
      {"ValueError: repeat: expected a tensor, got an undefined tensor", [&] { repeat(none, 2); }},
      {"ShapeError: repeat: expected a count for each axis of [2, 3], got [2]",
       [&] { repeat(x, 2); }},
      {"ValueError: repeat: expected counts of at least 0, got -1", [&] { repeat(x, {2, -1}); }},
      {"ValueError: repeat_interleave: expected counts of at least 0, got -1",
       [&] { repeat_interleave(x, -1, 0); }},
      {"IndexError: repeat_interleave: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { repeat_interleave(x, 2, 2); }},
      {"ValueError: repeat_interleave: expected a tensor, got an undefined tensor",
       [&] { repeat_interleave(none, 2, 0); }},
      {"DTypeError: repeat_interleave: expected counts of int64, got float32",
       [&] { repeat_interleave(x, pair, 0); }},
      {"ShapeError: repeat_interleave: expected shape [2], got [3]",
       [&] { repeat_interleave(x, tensor({1, 2, 3}), 0); }},
      {"ValueError: repeat_interleave: expected counts of at least 0, got -2",
       [&] { repeat_interleave(x, tensor({1, -2}), 0); }},
      {"ValueError: repeat_interleave: expected counts, got an undefined tensor",
       [&] { repeat_interleave(x, none, 0); }},
      {"IndexError: repeat_interleave: expected an axis in [-2, 2) for rank 2, got 5",
       [&] { repeat_interleave(x, tensor({1, 2}), 5); }},
      {"ValueError: pad: expected a tensor, got an undefined tensor", [&] { pad(none, {1, 1}); }},
      {"ShapeError: pad: expected a pair of widths for each of the last axes of [2, 3], got [1]",
       [&] { pad(x, 1); }},
      {"ShapeError: pad: expected a pair of widths for each of the last axes of [2, 3], got [1, "
       "1, 1, 1, 1, 1]",
       [&] { pad(x, {1, 1, 1, 1, 1, 1}); }},
      {"ShapeError: pad: expected widths that leave a part of [2, 3], got [-2, -2]",
       [&] { pad(x, {-2, -2}); }},
      {"ShapeError: pad: expected widths that leave a part of [2, 3], got [9223372036854775807, 1]",
       [&] { pad(x, {std::numeric_limits<int64_t>::max(), 1}); }},
      {"ValueError: pad: expected a value of uint8, got -1", [&] { pad(bytes, {1, 1}, -1); }},
      {"ValueError: pad: expected a value of int64, got 0.5", [&] { pad(ints, {1, 1}, 0.5); }},
      {"ShapeError: pad: expected a pair of widths for each of the last axes of [], got [1, 1]",
       [&] { pad(scalar, {1, 1}); }},
      {"IndexError: unfold: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { x.unfold(2, 1, 1); }},
      {"ValueError: unfold: expected windows of 1 to 2 elements, got 3",
       [&] { x.unfold(0, 3, 1); }},
      {"ValueError: unfold: expected windows of 1 to 2 elements, got 0",
       [&] { x.unfold(0, 0, 1); }},
      {"ValueError: unfold: expected a step of at least 1, got 0", [&] { x.unfold(0, 1, 0); }},
      {"ShapeError: unfold: expected at most 7 axes, got [1, 1, 1, 1, 1, 1, 1, 1]",
       [&] { deep.unfold(0, 1, 1); }},
      {"ValueError: tensor: expected a defined tensor, got an undefined one",
       [&] { none.unfold(0, 1, 1); }},
      {"IndexError: movedim: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { x.movedim(2, 0); }},
      {"IndexError: movedim: expected an axis in [-2, 2) for rank 2, got -3",
       [&] { x.movedim(0, -3); }},
      {"ValueError: tensor: expected a defined tensor, got an undefined one",
       [&] { none.movedim(0, 0); }},
      {"ValueError: unbind: expected a tensor, got an undefined tensor", [&] { unbind(none); }},
      {"IndexError: unbind: expected an axis in [-2, 2) for rank 2, got 2", [&] { unbind(x, 2); }},
      {"IndexError: unbind: expected an axis in [0, 0) for rank 0, got 0",
       [&] { scalar.unbind(); }},
      {"ValueError: split: expected a length of at least 1, got 0", [&] { x.split(0); }},
      {"ShapeError: split: expected lengths that add up to 2, got 1, 2",
       [&] { x.split({1, 2}, 0); }},
      {"ValueError: chunk: expected at least one piece, got 0", [&] { x.chunk(0); }},
      {"ShapeError: stack: expected shape [2, 3], got [2]", [&] { stack({x, pair}); }},
      {"ValueError: stack: expected at least one tensor, got none", [&] { stack({}); }},
      {"ShapeError: stack: expected at most 7 axes, got [1, 1, 1, 1, 1, 1, 1, 1]",
       [&] { stack({deep, deep}); }},
      {"ShapeError: unsqueeze: expected at most 7 axes, got [1, 1, 1, 1, 1, 1, 1, 1]",
       [&] { deep.unsqueeze(0); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: indices of several axes") {
  const Tensor mask = bools, rows = tensor({0, 1});
  expect_errors({
      {"ValueError: index: expected a tensor, got an undefined tensor", [&] { none[{0, 0}]; }},
      {"IndexError: select: expected an index in [-2, 2) for axis 0, got 2", [&] { x[{2, 0}]; }},
      {"IndexError: select: expected an index in [-3, 3) for axis 0, got -4", [&] { x[{0, -4}]; }},
      {"IndexError: index: expected at most 2 indices for [2, 3], got 3", [&] { x[{0, 0, 0}]; }},
      {"IndexError: index: expected at most one kEllipsis, got 2",
       [&] { x[{kEllipsis, 0, kEllipsis}]; }},
      {"ValueError: slice: expected a step of at least 1, got 0", [&] { x[{Slice(0, 2, 0), 0}]; }},
      {"IndexError: index: expected at most 2 indices for [2, 3], got 3",
       [&] { x[{Slice(), Slice(), Slice()}]; }},
      {"ShapeError: index: expected at most 8 axes, new ones included, got 9",
       [&] { deep[{kNewAxis, kEllipsis}]; }},
      {"ShapeError: index: expected at most 8 axes, new ones included, got 9",
       [&] { deep[{kNewAxis, zeros({1}, kInts), zeros({1}, kInts)}]; }},
      {"ShapeError: index_put_: expected at most 8 axes, new ones included, got 9",
       [&] { deep.index_put_({0, kNewAxis, kNewAxis, zeros({1}, kInts)}, 1); }},
      {"IndexError: index: expected at most 0 indices for [], got 2", [&] { scalar[{0, 0}]; }},
      {"DTypeError: index: expected int64 or bool, got float32", [&] { x[x]; }},
      {"ValueError: index: expected indices, got an undefined tensor", [&] { x[none]; }},
      {"DTypeError: index: expected int64 or bool, got int32",
       [&] { x[zeros({2}, {.dtype = DType::int32})]; }},
      {"IndexError: index: expected indices in [-2, 2), got 2 at [1]", [&] { x[tensor({0, 2})]; }},
      {"IndexError: index: expected indices in [-2, 2), got -3 at [0]", [&] { x[tensor({-3})]; }},
      {"IndexError: index: expected indices in [-3, 3), got 3 at [1, 0]",
       [&] { x[{Slice(), tensor({{0, 1}, {3, 0}})}]; }},
      {"ShapeError: index: expected shapes that broadcast together, got [2] and [3]",
       [&] { x[{rows, tensor({0, 1, 2})}]; }},
      {"IndexError: index: expected indices in [-3, 3), got 3 at [1]",
       [&] { x[{rows, tensor({0, 3})}]; }},
      {"IndexError: index: expected indices in [-2, 2), got -3 at [1]",
       [&] { x[{tensor({0, -3}), rows}]; }},
      {"IndexError: index: expected at most 2 indices for [2, 3], got 3",
       [&] { x[{rows, rows, rows}]; }},
      {"ShapeError: index: expected shape [2], got [3]", [&] { x[zeros({3}, kBools)]; }},
      {"ShapeError: index: expected shape [2, 3], got [2, 2]", [&] { x[zeros({2, 2}, kBools)]; }},
      {"IndexError: index: expected at most 2 indices for [2, 3], got 3",
       [&] { x[zeros({2, 3, 1}, kBools)]; }},
      {"ShapeError: index: expected at least 1 axis, got []", [&] { x[zeros({}, kBools)]; }},
      {"ShapeError: index: expected shape [2], got [3]", [&] { x[{zeros({3}, kBools), rows}]; }},
      {"ShapeError: index: expected a result of at most 8 axes, got indices [1, 1, 1, 1, 1, 1, 1, "
       "1] for one of [2, 3]",
       [&] { x[zeros({1, 1, 1, 1, 1, 1, 1, 1}, kInts)]; }},
      {"ValueError: operator=: expected a view, such as x[0] (index_put_ writes where tensors "
       "index), got a temporary that shares its elements with no tensor",
       [&] { x[x > 0] = 1; }},
      {"ValueError: index_put_: expected values, got an undefined tensor",
       [&] { x.index_put_({rows}, none); }},
      {"ValueError: index_put_: expected a tensor, got an undefined tensor",
       [&] { none.index_put_({rows}, x); }},
      {"ShapeError: index_put_: expected shapes that broadcast together, got [2, 3] and [3, 3]",
       [&] { x.index_put_({rows}, zeros({3, 3})); }},
      {"DTypeError: index_put_: expected tensors of one dtype, got float32 and int64",
       [&] { x.index_put_({rows}, zeros({2, 3}, kInts)); }},
      {"IndexError: index_put_: expected indices in [-2, 2), got 2 at [1]",
       [&] { x.index_put_({tensor({0, 2})}, x); }},
      {"IndexError: index_put_: expected at most 2 indices for [2, 3], got 3",
       [&] { x.index_put_({rows, rows, rows}, x); }},
      {"AutogradError: index_put_: a leaf that requires grad cannot be written in place while "
       "recording; use NoGradGuard or write to a result of it",
       [&] { leaf.index_put_({rows}, x); }},
      {"AutogradError: masked_fill_: a leaf that requires grad cannot be written in place while "
       "recording; use NoGradGuard or write to a result of it",
       [&] { leaf.index_put_({mask}, 1); }},
      {"DTypeError: index_put_: expected a dtype of numbers, got bool",
       [&] { bools.index_put_({rows}, bools, true); }},
      {"ValueError: index_put_: expected a value of int64, got 0.5",
       [&] { ints.index_put_({rows}, 0.5); }},
      {"ValueError: index_put_: expected a value of uint8, got 300",
       [&] { bytes.index_put_({mask}, 300); }},
      {"ShapeError: index_put_: expected shape [2], got [3]",
       [&] { x.index_put_({zeros({3}, kBools)}, 1); }},
      {"ShapeError: copy_: expected shapes that broadcast together, got [3] and [4]",
       [&] { x.index_put_({0, Slice()}, zeros({4})); }},
      {"ValueError: index_put_: expected an element of memory for each element of the tensor, got "
       "an expanded tensor of shape [2, 3]",
       [&] { zeros({1, 3}).expand({2, 3}).index_put_({rows}, x); }},
      {"ValueError: nonzero: expected a tensor, got an undefined tensor", [&] { nonzero(none); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: indices along one axis") {
  const Tensor index = zeros({1, 3}, kInts), rows = tensor({0, 1});
  expect_errors({
      {"IndexError: gather: expected indices in [-2, 2), got 2 at [0, 1]",
       [&] { gather(x, 0, tensor({{0, 2}})); }},
      {"IndexError: gather: expected indices in [-2, 2), got -3 at [0, 0]",
       [&] { gather(x, 0, tensor({{-3, 0}})); }},
      {"DTypeError: gather: expected indices of int64, got float32", [&] { x.gather(0, x); }},
      {"IndexError: gather: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { x.gather(2, index); }},
      {"ValueError: scatter: expected a tensor, got an undefined tensor",
       [&] { scatter(none, 0, index, x); }},
      {"ValueError: scatter: expected indices, got an undefined tensor",
       [&] { scatter(x, 0, none, x); }},
      {"ValueError: scatter: expected a tensor, got an undefined tensor",
       [&] { scatter(x, 0, index, none); }},
      {"DTypeError: scatter: expected tensors of one dtype, got float32 and int64",
       [&] { scatter(x, 0, index, ints); }},
      {"DTypeError: scatter: expected indices of int64, got float32", [&] { scatter(x, 0, x, x); }},
      {"ShapeError: scatter: expected an index that fits into [2, 3] on every axis but 0, got [1, "
       "4]",
       [&] { scatter(x, 0, zeros({1, 4}, kInts), zeros({1, 4})); }},
      {"ShapeError: scatter: expected an index that fits into [2, 3], got [3, 3]",
       [&] { scatter(x, 0, zeros({3, 3}, kInts), x); }},
      {"IndexError: scatter: expected indices in [-2, 2), got 2 at [0, 1]",
       [&] { scatter(x, 0, tensor({{0, 2, 0}}), x); }},
      {"IndexError: scatter: expected indices in [-2, 2), got -3 at [0, 1]",
       [&] { scatter(x, 0, tensor({{0, -3, 0}}), x); }},
      {"ShapeError: scatter: expected at least 1 axis, got []",
       [&] { scatter(scalar, 0, zeros({}, kInts), scalar); }},
      {"IndexError: scatter_add: expected indices in [-3, 3), got 3 at [0, 0]",
       [&] { scatter_add(x, 1, tensor({{3}}), x); }},
      {"ShapeError: scatter_add: expected an index that fits into [2], got [1, 3]",
       [&] { x.scatter_add(1, index, pair); }},
      {"IndexError: index_select: expected indices in [-3, 3), got 3 at [0]",
       [&] { index_select(x, 1, tensor({3})); }},
      {"IndexError: index_select: expected indices in [-3, 3), got -4 at [0]",
       [&] { x.index_select(1, tensor({-4})); }},
      {"ShapeError: index_select: expected 1 axis, got [1, 3]", [&] { x.index_select(1, index); }},
      {"ValueError: index_add: expected a tensor, got an undefined tensor",
       [&] { index_add(none, 0, rows, x); }},
      {"IndexError: index_add: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { index_add(x, 2, rows, x); }},
      {"ShapeError: index_add: expected 1 axis, got [1, 3]", [&] { index_add(x, 0, index, x); }},
      {"DTypeError: index_add: expected indices of int64, got float32", [&] { index_add(x, 0, x, x); }},
      {"IndexError: index_add: expected indices in [-2, 2), got 2 at [1]",
       [&] { index_add(x, 0, tensor({0, 2}), x); }},
      {"ShapeError: index_add: expected shape [1, 3], got [2, 3]",
       [&] { index_add(x, 0, tensor({0}), x); }},
      {"DTypeError: index_add: expected tensors of one dtype, got float32 and int64",
       [&] { index_add(x, 0, rows, ints); }},
      {"DTypeError: index_add: expected a dtype of numbers, got bool",
       [&] { index_add(bools, 0, rows, bools); }},
      {"ValueError: index_add: expected a tensor, got an undefined tensor",
       [&] { x.index_add(0, rows, none); }},
      {"IndexError: one_hot: expected indices in [0, 3), got -1 at [0]",
       [&] { one_hot(tensor({-1}), 3); }},
  });
}
