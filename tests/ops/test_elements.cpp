#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <sash/tensor/factories.h>

#include "../support/expect_error.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

// Each is a template: a constraint that fails in plain code is an error rather than false.
template <class T>
concept HasData = requires(Tensor x) {
  x.data<T>();
};
template <class T>
concept HasItem = requires(Tensor x) {
  x.item<T>();
  x.to_vector<T>();
};
template <class T>
concept FillsTensor = requires(std::vector<T> values) {
  tensor(values, {1});
};

template <class T>
void check_vector(DType dtype) {
  const auto low = std::numeric_limits<T>::min();
  const T high = sizeof(T) == 8 ? static_cast<T>(std::numeric_limits<int64_t>::max())
                                : std::numeric_limits<T>::max();
  const Tensor x = tensor(std::vector<T>{low, 7, high}, {3});
  CHECK(x.dtype() == dtype);
  CHECK(x.to_vector<int64_t>() == Ints{static_cast<int64_t>(low), 7, static_cast<int64_t>(high)});
}

}  // namespace

TEST_CASE("elements: C++ types by size and sign, and no others") {
  CHECK(dtype_of<long long> == DType::int64);
  CHECK(dtype_of<int64_t> == DType::int64);
  CHECK(dtype_of<int> == DType::int32);
  CHECK(dtype_of<uint8_t> == DType::uint8);
  CHECK(HasData<float>);
  CHECK(HasData<const float>);
  CHECK(HasData<long long>);
  CHECK_FALSE(HasData<int16_t>);
  CHECK_FALSE(HasData<const uint64_t>);
  CHECK_FALSE(HasData<char>);
  CHECK_FALSE(HasData<long double>);
  CHECK_FALSE(HasData<void>);
  CHECK(HasItem<long long>);
  CHECK_FALSE(HasItem<size_t>);
  CHECK_FALSE(HasItem<int16_t>);
  CHECK(FillsTensor<size_t>);
  CHECK_FALSE(FillsTensor<long double>);
  CHECK_FALSE(FillsTensor<Tensor>);
  CHECK_FALSE(FillsTensor<int*>);
}

TEST_CASE("elements: vectors of every integer type") {
  check_vector<char>(DType::int32);
  check_vector<int8_t>(DType::int32);
  check_vector<int16_t>(DType::int32);
  check_vector<uint16_t>(DType::int32);
  check_vector<int32_t>(DType::int32);
  check_vector<uint32_t>(DType::int64);
  check_vector<uint64_t>(DType::int64);
  check_vector<size_t>(DType::int64);
  check_vector<long>(DType::int64);
  check_vector<long long>(DType::int64);
  check_vector<unsigned long long>(DType::int64);
  check_vector<uint8_t>(DType::uint8);
  CHECK(tensor(std::vector<double>{0.5}, {1}).dtype() == DType::float64);
  CHECK(tensor(std::vector<float>{0.5F}, {1}).dtype() == DType::float32);
  const Tensor bits = tensor(std::vector<bool>{true, false}, {2});
  CHECK(bits.dtype() == DType::boolean);
  CHECK(bits.to_vector<bool>() == std::vector<bool>{true, false});
  CHECK(tensor(std::vector<size_t>{3}, {1}, {.dtype = DType::float64}).item<double>() == 3);
  CHECK(tensor(std::vector<size_t>{}, {0}).numel() == 0);
}

TEST_CASE("elements: a number that does not fit is refused") {
  const uint64_t beyond = uint64_t{1} << 63;
  expect_error<ValueError>("tensor: expected integers below 2^63, got 9223372036854775808", [&] {
    tensor(std::vector<uint64_t>{1, beyond}, {2});
  });
  expect_error<ValueError>("tensor: expected integers below 2^63, got 9223372036854775808", [&] {
    tensor({uint64_t{1}, beyond});
  });
  expect_error<ValueError>("from_host: expected a value of uint8, got 256", [] {
    tensor({255, 256}, {.dtype = DType::uint8});
  });
  expect_error<ValueError>("from_host: expected a value of int32, got 1e+10", [] {
    tensor({1.5, 1e10}, {.dtype = DType::int32});
  });
  expect_error<ValueError>("from_host: expected a value of int64, got nan",
                           [] { tensor({std::nan("")}, {.dtype = DType::int64}); });
  CHECK(tensor({-2147483648.9, 2147483647.9}, {.dtype = DType::int32}).to_vector<double>() ==
        std::vector<double>{-2147483648.0, 2147483647.0});
  CHECK(tensor({0.5, 0.0}, {.dtype = DType::boolean}).to_vector<bool>() ==
        std::vector<bool>{true, false});

  const Tensor x = tensor({-0x1p63, 300.5, -1.0}, {.dtype = DType::float64});
  CHECK(x[0].item<int64_t>() == std::numeric_limits<int64_t>::min());
  CHECK(x[1].item<int32_t>() == 300);
  expect_error<ValueError>("item: expected a value of uint8, got 300.5",
                           [&] { x[1].item<uint8_t>(); });
  expect_error<ValueError>("item: expected a value of uint8, got -1",
                           [&] { x[2].item<uint8_t>(); });
  expect_error<ValueError>("to_vector: expected a value of int32, got -9.22337e+18",
                           [&] { x.to_vector<int32_t>(); });
  expect_error<ValueError>("item: expected a value of int64, got 9.22337e+18",
                           [] { scalar_tensor(0x1p63).item<int64_t>(); });
  CHECK(scalar_tensor(0.1F).item<float16>().bits == float16(0.1F).bits);

  expect_error<ValueError>("full: expected a value of int32, got 2147483648",
                           [] { full({2}, int64_t{2147483648}, {.dtype = DType::int32}); });
  expect_error<ValueError>("full: expected a value of int64, got 1.84467e+19", [] {
    full({2}, std::numeric_limits<uint64_t>::max(), {.dtype = DType::int64});
  });
  CHECK(full({}, std::numeric_limits<uint64_t>::max()).item<double>() == 0x1p64);
}

TEST_CASE("elements: literals take the dtypes of torch::tensor") {
  const Tensor floats = tensor({0.5, 1.5});
  CHECK(floats.dtype() == DType::float32);
  CHECK(floats.shape() == Shape{2});
  CHECK(floats.to_vector<float>() == Floats{0.5F, 1.5F});
  CHECK(tensor({0.5F}).dtype() == DType::float32);
  CHECK(tensor({1, -2}).dtype() == DType::int64);
  CHECK(tensor({1, -2}).to_vector<int64_t>() == Ints{1, -2});
  CHECK(tensor({1LL, 2LL}).to_vector<int64_t>() == Ints{1, 2});
  CHECK(tensor({1U, 4000000000U}).to_vector<int64_t>() == Ints{1, 4000000000});
  CHECK(tensor({size_t{1}}).dtype() == DType::int64);
  CHECK(tensor({'a'}).item<int64_t>() == 'a');
  CHECK(tensor({true, false}).dtype() == DType::boolean);
  CHECK(tensor({true, false}).to_vector<bool>() == std::vector<bool>{true, false});
  CHECK(tensor({uint8_t{200}}).dtype() == DType::uint8);
  CHECK(tensor({float16(0.5F)}).dtype() == DType::float16);
  {
    const DefaultDType wide(DType::float64);
    CHECK(tensor({0.1}).item<double>() == 0.1);
    CHECK(tensor({0.1F}).dtype() == DType::float64);
    CHECK(tensor({1}).dtype() == DType::int64);
  }
  // Not by way of the default dtype.
  CHECK(tensor({0.1}, {.dtype = DType::float64}).item<double>() == 0.1);
  CHECK(tensor({1, 2}, {.dtype = DType::float64}).dtype() == DType::float64);
  CHECK(tensor({0.5}, {.requires_grad = true}).requires_grad());

  CHECK(tensor<double>({1, 2}).dtype() == DType::float64);
  CHECK(tensor<int32_t>({1, 2}).dtype() == DType::int32);
}

TEST_CASE("elements: nested braces make two and three axes") {
  const Tensor matrix = tensor({{1, 2, 3}, {4, 5, 6}});
  CHECK(matrix.dtype() == DType::int64);
  CHECK(matrix.shape() == Shape{2, 3});
  CHECK(matrix.to_vector<int64_t>() == Ints{1, 2, 3, 4, 5, 6});
  CHECK(tensor({{1.5}}).shape() == Shape{1, 1});
  CHECK(tensor({{1}, {2}}).shape() == Shape{2, 1});
  CHECK(tensor({{true, false}}).shape() == Shape{1, 2});
  const Tensor cube = tensor({{{1., 2.}, {3., 4.}, {5., 6.}}});
  CHECK(cube.dtype() == DType::float32);
  CHECK(cube.shape() == Shape{1, 3, 2});
  CHECK(cube.to_vector<float>() == Floats{1, 2, 3, 4, 5, 6});
  CHECK(tensor<double>({{1, 2}, {3, 4}}).shape() == Shape{2, 2});
  CHECK(tensor<double>({{{1, 2}}, {{3, 4}}}).shape() == Shape{2, 1, 2});
  expect_error<ShapeError>("tensor: expected lists of 2 at this depth, got one of 1", [] {
    tensor({{1, 2}, {3}});
  });
  expect_error<ShapeError>("tensor: expected lists of 1 at this depth, got one of 2", [] {
    tensor({{{1}, {2}}, {{3}, {4, 5}}});
  });
}
