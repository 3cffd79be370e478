// Wrong calls of ops that choose, reduce and draw: type and whole text.
#include <doctest/doctest.h>

#include <limits>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/index/sort.h>
#include <sash/ops/random/sampling.h>
#include <sash/ops/reduce/norm.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct Inputs {
  Tensor x = zeros({2, 3});
  Tensor number = zeros({});
  Tensor nothing = zeros({2, 0});
  Tensor ints = zeros({2, 3}, kInts);
  Tensor bools = zeros({2, 3}, kBools);
  Tensor bytes = zeros({2, 3}, {.dtype = DType::uint8});
  Tensor none;
};

}  // namespace

// It would break a row with braces in its call over four lines.
// clang-format off

TEST_CASE_FIXTURE(Inputs, "wrong calls: topk and sort") {
  expect_errors({
      {"ValueError: topk: expected k in [0, 3], got 4", [&] { topk(x, 4); }},
      {"ValueError: topk: expected k in [0, 3], got -1", [&] { topk(x, -1); }},
      {"ValueError: topk: expected k in [0, 2], got 3", [&] { topk(x, 3, 0); }},
      {"ValueError: topk: expected k in [0, 0], got 1", [&] { topk(nothing, 1); }},
      {"ValueError: topk: expected k in [0, 3], got 4", [&] { topk(x, 4, 1, false); }},
      {"IndexError: topk: expected an axis in [-2, 2) for rank 2, got 2", [&] { topk(x, 1, 2); }},
      {"ShapeError: topk: expected at least 1 axis, got []", [&] { topk(number, 1); }},
      {"DTypeError: topk: expected a dtype of numbers, got bool",
       [&] { topk(bools, 1); }},
      {"ValueError: topk: expected a tensor, got an undefined tensor", [&] { topk(none, 1); }},
      {"IndexError: sort: expected an axis in [-2, 2) for rank 2, got 2", [&] { sort(x, 2); }},
      {"IndexError: sort: expected an axis in [-2, 2) for rank 2, got -3", [&] { sort(x, -3); }},
      {"ShapeError: sort: expected at least 1 axis, got []", [&] { sort(number); }},
      {"DTypeError: sort: expected a dtype of numbers, got bool",
       [&] { sort(bools); }},
      {"ValueError: sort: expected a tensor, got an undefined tensor", [&] { sort(none); }},
      {"IndexError: argsort: expected an axis in [-2, 2) for rank 2, got 5",
       [&] { argsort(x, 5); }},
      {"ShapeError: argsort: expected at least 1 axis, got []", [&] { argsort(number); }},
      {"DTypeError: argsort: expected a dtype of numbers, got bool",
       [&] { argsort(bools); }},
      {"ValueError: argsort: expected a tensor, got an undefined tensor", [&] { argsort(none); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: max and min") {
  expect_errors({
      {"IndexError: max: expected an axis in [-2, 2) for rank 2, got 2", [&] { max(x, 2); }},
      {"IndexError: min: expected an axis in [-2, 2) for rank 2, got -3",
       [&] { min(x, -3, true); }},
      {"ShapeError: max: expected an axis that is not empty, got [2, 0]", [&] { max(nothing, 1); }},
      {"ShapeError: min: expected an axis that is not empty, got [2, 0]",
       [&] { min(nothing, -1); }},
      {"ShapeError: max: expected at least 1 axis, got []", [&] { max(number, 0); }},
      {"ShapeError: min: expected at least 1 axis, got []", [&] { min(number, 0); }},
      {"DTypeError: max: expected a dtype of numbers, got bool",
       [&] { max(bools, 0); }},
      {"DTypeError: min: expected a dtype of numbers, got bool", [&] { min(bools, 0); }},
      {"ValueError: max: expected a tensor, got an undefined tensor", [&] { max(none, 0); }},
      {"ValueError: min: expected a tensor, got an undefined tensor", [&] { min(none, 0); }},
      {"ShapeError: amax: expected reduced axes that are not empty, got [2, 0]",
       [&] { max(nothing); }},
      {"ShapeError: amin: expected reduced axes that are not empty, got [2, 0]",
       [&] { min(nothing); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: any, all, prod, std, norm") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  expect_errors({
      {"IndexError: any: expected an axis in [-2, 2) for rank 2, got 2", [&] { any(x, {2}); }},
      {"ValueError: any: expected each axis once, got [0, -2]", [&] { any(x, {0, -2}); }},
      {"ValueError: any: expected a tensor, got an undefined tensor", [&] { any(none); }},
      {"IndexError: all: expected an axis in [-2, 2) for rank 2, got -3", [&] { all(x, {-3}); }},
      {"ValueError: all: expected each axis once, got [1, 1]", [&] { all(bools, {1, 1}); }},
      {"ValueError: all: expected a tensor, got an undefined tensor", [&] { all(none, {0}); }},
      {"IndexError: prod: expected an axis in [-2, 2) for rank 2, got 3", [&] { prod(x, {3}); }},
      {"ValueError: prod: expected each axis once, got [-1, 1]", [&] { prod(x, {-1, 1}); }},
      {"ValueError: prod: expected a tensor, got an undefined tensor", [&] { prod(none); }},
      {"IndexError: std: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { sash::std(x, {2}); }},
      {"ValueError: std: expected each axis once, got [0, 0]", [&] { sash::std(x, {0, 0}); }},
      {"DTypeError: std: expected a floating dtype, got int64", [&] { sash::std(ints); }},
      {"DTypeError: std: expected a floating dtype, got bool", [&] { sash::std(bools, {0}); }},
      {"ValueError: std: expected a tensor, got an undefined tensor", [&] { sash::std(none); }},
      {"IndexError: norm: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { norm(x, 2, {2}); }},
      {"ValueError: norm: expected each axis once, got [1, -1]", [&] { norm(x, 2, {1, -1}); }},
      {"DTypeError: norm: expected a floating dtype, got int64", [&] { norm(ints); }},
      {"DTypeError: norm: expected a floating dtype, got uint8", [&] { norm(bytes, 1); }},
      {"ValueError: norm: expected an order p, got nan", [&] { norm(x, nan); }},
      {"ShapeError: norm: expected reduced axes that are not empty, got [2, 0]",
       [&] { norm(nothing, infinity, {1}); }},
      {"ShapeError: norm: expected reduced axes that are not empty, got [2, 0]",
       [&] { norm(nothing, -infinity); }},
      {"ValueError: norm: expected a tensor, got an undefined tensor", [&] { norm(none); }},
  });
}

TEST_CASE_FIXTURE(Inputs, "wrong calls: bernoulli and multinomial") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Tensor some = tensor({{0.0, 1.0, 2.0}, {0.0, 0.0, 3.0}});
  expect_errors({
      {"ValueError: bernoulli: expected a tensor, got an undefined tensor",
       [&] { bernoulli(none); }},
      {"DTypeError: bernoulli: expected a floating dtype, got int64", [&] { bernoulli(ints); }},
      {"DTypeError: bernoulli: expected a floating dtype, got bool", [&] { bernoulli(bools); }},
      {"ValueError: bernoulli: expected probabilities in [0, 1], got another",
       [&] { bernoulli(x + 1.5); }},
      {"ValueError: bernoulli: expected probabilities in [0, 1], got another",
       [&] { bernoulli(x - 0.5); }},
      {"ValueError: bernoulli: expected probabilities in [0, 1], got another",
       [&] { bernoulli(x + nan); }},
      {"ValueError: multinomial: expected a tensor, got an undefined tensor",
       [&] { multinomial(none, 1); }},
      {"DTypeError: multinomial: expected a floating dtype, got int64",
       [&] { multinomial(ints, 1); }},
      {"ShapeError: multinomial: expected weights [C] or [N, C], got []",
       [&] { multinomial(number, 1); }},
      {"ShapeError: multinomial: expected weights [C] or [N, C], got [1, 2, 3]",
       [] { multinomial(ones({1, 2, 3}), 1); }},
      {"ShapeError: multinomial: expected at least one weight, got [2, 0]",
       [&] { multinomial(nothing, 1); }},
      {"ValueError: multinomial: expected a number of draws of at least 0, got -1",
       [&] { multinomial(some, -1); }},
      {"ValueError: multinomial: expected at most 3 draws without replacement, got 4",
       [&] { multinomial(some, 4); }},
      {"ValueError: multinomial: expected rows with at least 2 weights above 0, got a row with 1",
       [&] { multinomial(some, 2); }},
      {"ValueError: multinomial: expected rows with at least 1 weights above 0, got a row with 0",
       [&] { multinomial(x, 9, true); }},
      {"ValueError: multinomial: expected finite weights of at least 0, got another",
       [&] { multinomial(some - 1, 1); }},
      {"ValueError: multinomial: expected finite weights of at least 0, got another",
       [&] { multinomial(some + infinity, 1); }},
      {"ValueError: multinomial: expected finite weights of at least 0, got another",
       [&] { multinomial(some + nan, 1, true); }},
  });
}
