// Tensors of more than 2^31 elements, and products and lines of which there are as many: sizes and
// offsets that fit no 32 bits. For a card of 80 GB; each test needs at most half of it.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include <sash/core/backend/backend.h>
#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kMany = (int64_t{1} << 31) + 1027;  // no multiple of a vector
constexpr int64_t kRows = (int64_t{1} << 16) + 1, kColumns = int64_t{1} << 15;
constexpr int64_t kGiB = int64_t{1} << 30;

TensorOptions on_card(DType dtype) { return {.dtype = dtype, .device = kCUDA}; }
const TensorOptions kBytes = on_card(DType::uint8), kHalves = on_card(DType::bfloat16);

/// Whether there is no card, or less memory than a test needs, which skips it.
bool too_small(int64_t gib) {
  if (missing(kCUDA)) return true;
  synchronize(kCUDA);
  empty_cache(kCUDA);
  try {
    empty({gib * kGiB}, kBytes);
  } catch (const OutOfMemory& error) {
    return skip(false, "needs " + std::to_string(gib) + " GiB: " + error.what());
  }
  empty_cache(kCUDA);
  return false;
}

bool all_are(const Tensor& x, double value) { return all(eq(x, value)).item<bool>(); }
double at(const Tensor& x, int64_t place) {
  return x.narrow(0, place, 1).to(DType::float32).item<double>();
}
Tensor set(const Tensor& x, const std::vector<int64_t>& places, double value) {
  for (const int64_t place : places) Tensor(x).narrow(0, place, 1).fill_(value);
  return x;
}
Tensor places(const std::vector<int64_t>& at) {
  return tensor(at, {static_cast<int64_t>(at.size())}).to(kCUDA);
}
const std::vector<int64_t> kPlaces{
    0,        5, (int64_t{1} << 30) - 1, int64_t{1} << 30, (int64_t{1} << 31) - 1, int64_t{1} << 31,
    kMany - 1};

}  // namespace

TEST_CASE("cuda large: bytes are filled, copied, compared and counted") {
  if (too_small(12)) return;
  const Tensor x = set(full({kMany}, 1, kBytes), {kMany - 1}, 5);
  CHECK(x.sum().item<int64_t>() == kMany + 4);
  CHECK(all_are(x.narrow(0, 0, kMany - 1), 1));
  CHECK(!all_are(x, 1));
  const Tensor y = x.clone();
  CHECK(all(eq(x, y)).item<bool>());
  CHECK(any(ne(x, 1)).item<bool>());
  const Tensor host = x.to(kCPU);
  CHECK(host.data<const uint8_t>()[kMany - 1] == 5);
  CHECK(host.to(kCUDA).sum().item<int64_t>() == kMany + 4);
  const Tensor joined = cat({x.narrow(0, 0, kGiB + 3), x.narrow(0, kGiB + 3, kMany - kGiB - 3)});
  CHECK(all(eq(joined, x)).item<bool>());
  // Every second element: the largest offset is twice the count.
  const Tensor second = x.narrow(0, 0, kMany - 1).view({(kMany - 1) / 2, 2}).narrow(1, 1, 1);
  CHECK(second.clone().to(DType::int32).sum().item<int64_t>() == (kMany - 1) / 2);
}

TEST_CASE("cuda large: masks, and the places of their true elements") {
  if (too_small(32)) return;
  const Tensor some = set(zeros({kMany}, on_card(DType::boolean)), kPlaces, 1);
  CHECK(nonzero(some).reshape({-1}).to_vector<int64_t>() == kPlaces);
  const Tensor x = masked_fill(zeros({kMany}, kHalves), some, 3);
  CHECK(x.to(DType::float32).sum().item<double>() == 3.0 * double(kPlaces.size()));
  CHECK(at(x, kMany - 1) == 3);
  CHECK(at(where(some, x, x + 1), kMany - 1) == 3);
  CHECK(at(where(some, x, x + 1), kMany - 2) == 1);
}

TEST_CASE("cuda large: a mask of which a quarter is true") {
  if (too_small(26)) return;
  constexpr int64_t quarter = (kMany - 3) / 4;
  const Tensor mask = zeros({kMany}, on_card(DType::boolean));
  mask.narrow(0, 0, 4 * quarter).view({quarter, 4}).narrow(1, 0, 1).fill_(1);
  const Tensor found = nonzero(mask).view({-1});
  REQUIRE(found.numel() == quarter);
  for (const int64_t i : {int64_t{0}, int64_t{1}, (int64_t{1} << 28) - 1, int64_t{1} << 28,
                          int64_t{1} << 29, quarter - 1}) {
    CHECK(found.narrow(0, i, 1).item<int64_t>() == 4 * i);
  }
}

TEST_CASE("cuda large: bfloat16 element by element, cast and reduced") {
  if (too_small(30)) return;
  const Tensor x = set(full({kMany}, 0.5, kHalves), {kMany - 1}, 2);
  CHECK(argmax(x, 0).item<int64_t>() == kMany - 1);
  CHECK(argmin(set(x.clone(), {kMany - 2}, -1), 0).item<int64_t>() == kMany - 2);
  CHECK(amax(x).to(DType::float32).item<double>() == 2);
  const Tensor y = relu(x * 2.0 + x);
  CHECK(all_are(y.narrow(0, 0, kMany - 1), 1.5));
  CHECK(at(y, kMany - 1) == 6);
  const Tensor wide = x.to(DType::float32);
  CHECK(wide.sum().item<double>() == doctest::Approx(0.5 * double(kMany) + 1.5).epsilon(1e-6));
  CHECK(wide.to(DType::bfloat16).narrow(0, kMany - 1, 1).to(DType::float32).item<double>() == 2);
  Tensor z = x.clone();
  z.add_(x);
  CHECK(at(z, kMany - 1) == 4);
}

TEST_CASE("cuda large: rows and columns of a matrix, also turned") {
  if (too_small(30)) return;
  Tensor x = full({kRows, kColumns}, 1, kHalves);
  CHECK(all_are(x.sum({1}), double(kColumns)));
  CHECK(all_are(x.to(DType::float32).sum({0}), double(kRows)));
  CHECK(all_are(softmax(x, 1), 1 / double(kColumns)));
  x.narrow(0, kRows - 1, 1).narrow(1, kColumns - 1, 1).fill_(3);
  x.narrow(0, kRows - 1, 1).narrow(1, 0, 1).fill_(5);
  x.narrow(0, 0, 1).narrow(1, kColumns - 1, 1).fill_(7);
  const Tensor turned = x.transpose(0, 1).contiguous();
  const auto element = [](const Tensor& of, int64_t i, int64_t j) {
    return of.narrow(0, i, 1).narrow(1, j, 1).to(DType::float32).item<double>();
  };
  CHECK(element(turned, kColumns - 1, kRows - 1) == 3);
  CHECK(element(turned, 0, kRows - 1) == 5);
  CHECK(element(turned, kColumns - 1, 0) == 7);
  CHECK(argmax(turned.view({-1}), 0).item<int64_t>() == (kColumns - 1) * kRows);
  const Tensor normed = layer_norm(turned, {kRows});
  CHECK(all_are(normed.narrow(0, 1, kColumns - 2), 0));
  CHECK(element(normed, 0, kRows - 1) > 100);
}

TEST_CASE("cuda large: gather, scatter and embedding reach the last element") {
  if (too_small(30)) return;
  const Tensor x = set(zeros({kMany}, kHalves), kPlaces, 1);
  const Tensor index = places(kPlaces);
  CHECK(all_are(gather(x, 0, index), 1));
  CHECK(all_are(index_select(x, 0, index), 1));
  const Tensor added = scatter_add(x, 0, index, full({index.numel()}, 2, kHalves));
  CHECK(all_are(gather(added, 0, index), 3));
  CHECK(added.to(DType::float32).sum().item<double>() == 3.0 * double(kPlaces.size()));

  const Tensor table = x.narrow(0, 0, (kRows - 1) * kColumns).view({kRows - 1, kColumns});
  const Tensor rows = places({kRows - 2, 0, kRows - 2, 32767});
  const Tensor found = embedding(table, rows);
  CHECK(all(eq(found, index_select(table, 0, rows))).item<bool>());
  CHECK(found.narrow(0, 3, 1).to(DType::float32).sum().item<double>() == 1);  // 2^30 - 1
  const Tensor g = embedding_backward(ones({4, kColumns}, kHalves), rows, kRows);
  CHECK(all_are(g.narrow(0, kRows - 2, 1), 2));
  CHECK(g.to(DType::float32).sum().item<double>() == 4.0 * double(kColumns));
}

TEST_CASE("cuda large: a batch of 2^32 + 1 products of 1 x 1") {
  if (too_small(36)) return;
  constexpr int64_t count = (int64_t{1} << 32) + 1;
  Tensor a = full({count, 1, 1}, 3, kHalves);
  const Tensor b = full({count, 1, 1}, 2, kHalves);
  a.narrow(0, count - 1, 1).fill_(5);
  const Tensor c = matmul(a, b);
  CHECK(at(c, count - 1) == 10);
  CHECK(all_are(c.narrow(0, 0, count - 1), 6));
}

TEST_CASE("cuda large: products of more than 2^31 rows, columns and terms of a sum") {
  if (too_small(30)) return;
  const Tensor x = set(full({kMany}, 1, kHalves), {kMany - 1}, 4);
  const Tensor three = full({1, 1}, 3, kHalves), bias = full({1}, 1, kHalves);
  const Tensor rows = matmul(x.view({kMany, 1}), three).view({kMany});
  CHECK(at(rows, kMany - 1) == 12);
  CHECK(all_are(rows.narrow(0, 0, kMany - 1), 3));
  const Tensor columns = matmul(three, x.view({1, kMany})).view({kMany});
  CHECK(at(columns, kMany - 1) == 12);
  CHECK(all_are(columns.narrow(0, 0, kMany - 1), 3));
  const Tensor with_bias = linear(x.view({kMany, 1}), three, bias).view({kMany});
  CHECK(at(with_bias, kMany - 1) == 13);
  CHECK(at(with_bias, kMany - 2) == 4);
  const Tensor few = set(zeros({kMany}, kHalves), kPlaces, 1);
  const Tensor sum = matmul(few.view({1, kMany}), few.view({kMany, 1}));
  CHECK(sum.to(DType::float32).item<double>() == double(kPlaces.size()));
}

TEST_CASE("cuda large: more than 2^31 lines are sorted") {
  if (too_small(34)) return;
  const Tensor x = set(zeros({kMany}, kHalves), kPlaces, 1);
  const auto [values, indices] = topk(x.view({kMany, 1}), 1);
  CHECK(all(eq(values.view({kMany}), x)).item<bool>());
  CHECK(!any(indices).item<bool>());
}

TEST_CASE("cuda large: a line of more than 2^31 elements is sorted, where there are 110 GiB") {
  if (too_small(110)) return;
  const Tensor x = set(zeros({kMany}, kHalves), kPlaces, 1);
  const auto [values, indices] = sort(x);  // stable: zeros, then ones, each in their order
  const int64_t ones = static_cast<int64_t>(kPlaces.size());
  CHECK(all_are(values.narrow(0, 0, kMany - ones), 0));
  CHECK(all_are(values.narrow(0, kMany - ones, ones), 1));
  CHECK(indices.narrow(0, kMany - ones, ones).to_vector<int64_t>() == kPlaces);
  const auto index = [&](int64_t i) { return indices.narrow(0, i, 1).item<int64_t>(); };
  CHECK(index(0) == 1);
  CHECK(index((int64_t{1} << 30) - 4) == (int64_t{1} << 30) - 2);
  CHECK(index((int64_t{1} << 30) - 3) == (int64_t{1} << 30) + 1);
  CHECK(index(kMany - ones - 1) == kMany - 2);
}

TEST_CASE("cuda large: a plane of more than 2^32 windows") {
  if (too_small(40)) return;
  constexpr int64_t height = int64_t{1} << 16, width = height + 8;
  Tensor x = full({1, 1, height, width}, 1, kHalves);
  x.view({-1}).narrow(0, height * width - 1, 1).fill_(4);
  const Tensor y = conv2d(x, full({1, 1, 1, 1}, 2, kHalves)).view({-1});
  CHECK(at(y, height * width - 1) == 8);
  CHECK(all_are(y.narrow(0, 0, height * width - 1), 2));
}

TEST_CASE("cuda large: random numbers do not begin again") {
  if (too_small(16)) return;
  manual_seed(1);
  const Tensor x = rand({kMany}, kHalves);
  for (const int64_t start : {int64_t{1} << 30, int64_t{1} << 31}) {
    CHECK(!all(eq(x.narrow(0, start, 1000), x.narrow(0, 0, 1000))).item<bool>());
  }
  const Tensor mean = x.narrow(0, kMany - 4096, 4096).to(DType::float32).mean();
  CHECK(mean.item<double>() == doctest::Approx(0.5).epsilon(0.1));
}

TEST_CASE("cuda large: a parameter is clipped and updated") {
  if (too_small(24)) return;
  Tensor p = full({kMany}, 2, kHalves).requires_grad_();
  p.set_grad(set(full({kMany}, 1, kHalves), {kMany - 1}, 8));
  const double norm = optim::clip_grad_norm_({p}, 1e9).item<double>();
  CHECK(norm == doctest::Approx(std::sqrt(double(kMany) + 63)).epsilon(1e-9));
  optim::SGD(std::vector<Tensor>{p}, {.lr = 0.5}).step();
  CHECK(at(p.detach(), kMany - 1) == -2);
  CHECK(all_are(p.detach().narrow(0, 0, kMany - 1), 1.5));
}

TEST_CASE("cuda large: a loss of more than 2^31 logits") {
  if (too_small(30)) return;
  Tensor logits = zeros({kRows, kColumns}, kHalves).requires_grad_();
  const Tensor targets = full({kRows}, kColumns - 1, on_card(DType::int64));
  const Tensor loss = cross_entropy(logits, targets);
  CHECK(loss.to(DType::float32).item<double>() == doctest::Approx(std::log(32768.0)).epsilon(4e-3));
  loss.backward();
  const Tensor last = logits.grad().narrow(0, kRows - 1, 1).to(DType::float32);
  CHECK(last.narrow(1, kColumns - 1, 1).item<double>() ==
        doctest::Approx(-1 / double(kRows)).epsilon(0.01));
  CHECK(last.narrow(1, 0, 1).item<double>() ==
        doctest::Approx(1 / double(kRows) / double(kColumns)).epsilon(0.01));
}

TEST_CASE("cuda large: attention refuses more heads than its kernels count") {
  if (too_small(36)) return;
  constexpr int64_t count = (int64_t{1} << 32) + 1;
  const Tensor x = ones({count, 1, 1, 1}, kHalves);
  expect_error<ValueError>(
      "attention: expected at most 2^30 queries, keys, and heads of all batches, got " +
          std::to_string(count),
      [&] { attention(x, x, x); });
}
