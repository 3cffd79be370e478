#include <doctest/doctest.h>
#include <sash/tensor/factories.h>

#include <cmath>
#include <limits>
#include <sstream>

using namespace sash;

TEST_CASE("print: numbers are aligned in columns") {
  CHECK(to_string(tensor(std::vector<float>{1.5F, -2, 30, 0}, {2, 2})) ==
        "[[ 1.5000, -2.0000],\n"
        " [30.0000,  0.0000]] float32 [2, 2] cpu");
  CHECK(to_string(tensor<float>({1, -2, 30})) == "[ 1, -2, 30] float32 [3] cpu");
  CHECK(to_string(tensor(std::vector<int64_t>{1, 22, -333, 9007199254740993}, {4, 1})) ==
        "[[               1],\n"
        " [              22],\n"
        " [            -333],\n"
        " [9007199254740993]] int64 [4, 1] cpu");
  CHECK(to_string(tensor<uint8_t>({65, 200})) == "[ 65, 200] uint8 [2] cpu");
  CHECK(to_string(tensor(std::vector<bool>{true, false}, {2})) == "[ true, false] bool [2] cpu");
}

TEST_CASE("print: exponents where four decimals would lose digits") {
  CHECK(to_string(tensor<double>({1e-5, 1})) == "[1.0000e-05, 1.0000e+00] float64 [2] cpu");
  CHECK(to_string(tensor<double>({0.5, 501})) == "[5.0000e-01, 5.0100e+02] float64 [2] cpu");
  CHECK(to_string(tensor<double>({0.5, 499})) == "[  0.5000, 499.0000] float64 [2] cpu");
  CHECK(to_string(tensor<double>({1e8})) == "[1.0000e+08] float64 [1] cpu");
}

TEST_CASE("print: NaN, infinities and halves") {
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(to_string(tensor<double>({std::nan(""), -std::nan(""), inf, -inf, 1})) ==
        "[ nan,  nan,  inf, -inf,    1] float64 [5] cpu");
  CHECK(to_text(-std::nan("")) == "nan");
  CHECK(to_string(tensor<float16>({float16(0.5F), float16(1.0F)})) ==
        "[0.5000, 1.0000] float16 [2] cpu");
  CHECK(to_string(tensor<bfloat16>({bfloat16(-3.0F)})) == "[-3] bfloat16 [1] cpu");
}

TEST_CASE("print: every rank") {
  CHECK(to_string(Tensor()) == "undefined");
  CHECK(to_string(scalar_tensor(2.5)) == "2.5000 float32 [] cpu");
  CHECK(to_string(empty({0})) == "[] float32 [0] cpu");
  CHECK(to_string(empty({2, 0, 3}, {.dtype = DType::int32, .device = kCPU})) ==
        "[] int32 [2, 0, 3] cpu");
  CHECK(to_string(tensor(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2})) ==
        "[[[1, 2],\n"
        "  [3, 4]],\n"
        "\n"
        " [[5, 6],\n"
        "  [7, 8]]] int32 [2, 2, 2] cpu");
}

TEST_CASE("print: long rows are wrapped, large tensors abridged") {
  std::vector<int64_t> row(26);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<int64_t>(i) + 100;
  CHECK(to_string(tensor(row, {26})) ==
        "[100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114,\n"
        " 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125] int64 [26] cpu");
  std::vector<int64_t> many(1001);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i);
  CHECK(to_string(tensor(many, {1001})) ==
        "[   0,    1,    2, ...,  998,  999, 1000] int64 [1001] cpu");
  CHECK(to_string(tensor(many, {143, 7})) ==
        "[[   0,    1,    2, ...,    4,    5,    6],\n"
        " [   7,    8,    9, ...,   11,   12,   13],\n"
        " [  14,   15,   16, ...,   18,   19,   20],\n"
        " ...,\n"
        " [ 980,  981,  982, ...,  984,  985,  986],\n"
        " [ 987,  988,  989, ...,  991,  992,  993],\n"
        " [ 994,  995,  996, ...,  998,  999, 1000]] int64 [143, 7] cpu");
}

TEST_CASE("print: views are read through their strides") {
  const Tensor x = tensor(std::vector<int32_t>{1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(to_string(x.transpose(0, 1)) ==
        "[[1, 4],\n"
        " [2, 5],\n"
        " [3, 6]] int32 [3, 2] cpu");
}

TEST_CASE("print: grad_fn and requires_grad") {
  Tensor x = tensor<float>({1, 2});
  x.requires_grad_();
  std::ostringstream out;
  out << x;
  CHECK(out.str() == "[1, 2] float32 [2] cpu requires_grad");
  const Tensor y = x.clone();
  CHECK(to_string(y) == "[1, 2] float32 [2] cpu grad_fn=<clone>");
  CHECK(to_string(y.detach()) == "[1, 2] float32 [2] cpu");
}
