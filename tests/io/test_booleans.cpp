// Booleans are bytes of 0 and 1, wherever they come from.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include <sash/ops/elementwise/compare.h>
#include <sash/ops/elementwise/where.h>
#include <sash/ops/index/indexing.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/ops/shape/concat.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/dlpack.h>

#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

std::vector<int> bytes_of(const Tensor& booleans) {
  const Tensor host = booleans.to(kCPU).contiguous();
  REQUIRE(host.dtype() == DType::boolean);
  std::vector<uint8_t> bytes(static_cast<size_t>(host.numel()));
  std::memcpy(bytes.data(), host.data<const bool>(), bytes.size());
  return {bytes.begin(), bytes.end()};
}

using Bytes = std::vector<int>;

}  // namespace

TEST_CASE_TEMPLATE("booleans: any byte of the host's memory but 0 is true", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const uint8_t bytes[] = {255, 2, 0, 1};
  const TensorOptions on{.device = On::device};
  const Tensor x = from_host(bytes, {4}, DType::boolean, on);
  CHECK(bytes_of(x) == Bytes{1, 1, 0, 1});
  CHECK(x.sum().template item<int64_t>() == 3);
  CHECK(nonzero(x).shape() == Shape{3, 1});
  CHECK(bytes_of(logical_not(x)) == Bytes{0, 0, 1, 0});
  const Tensor wide =
      from_host(bytes, {4}, DType::boolean, {.dtype = DType::int32, .device = On::device});
  CHECK(wide.to_vector<int32_t>() == std::vector<int32_t>{1, 1, 0, 1});
}

TEST_CASE("booleans: memory that is shared has 0 and 1 alone") {
  uint8_t bytes[] = {1, 2, 0, 1, 255, 1};
  CHECK(bytes_of(from_blob(bytes + 2, {2}, DType::boolean)) == Bytes{0, 1});
  bool released = false;
  expect_error<ValueError>("from_blob: expected booleans of 0 and 1, got 2", [&] {
    from_blob(bytes, {2, 3}, DType::boolean, kCPU, [&] { released = true; });
  });
  CHECK(!released);

  int64_t shape[] = {2, 2, 5}, strides[] = {3, 2, 0};  // the bytes 0, 2, 3 and 5
  dlpack::DLManagedTensorVersioned lent{};
  lent.version = {1, 0};
  lent.dl_tensor = {bytes, {dlpack::kDLCPU, 0}, 3, {dlpack::kDLBool, 8, 1}, shape, strides, 0};
  CHECK(bytes_of(from_dlpack(&lent).select(2, 4)) == Bytes{1, 0, 1, 1});
  strides[1] = 1;
  expect_error<ValueError>("from_dlpack: expected booleans of 0 and 1, got 2",
                           [&] { from_dlpack(&lent); });
}

TEST_CASE_TEMPLATE("booleans: what writes them writes 0 and 1", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions boolean{.dtype = DType::boolean, .device = On::device};
  const auto on = [](DType dtype) { return TensorOptions{.dtype = dtype, .device = On::device}; };
  const Bytes mixed{1, 1, 0, 1};
  CHECK(bytes_of(tensor<uint8_t>({255, 2, 0, 1}, on(DType::uint8)).to(DType::boolean)) == mixed);
  CHECK(bytes_of(tensor<int64_t>({int64_t{1} << 32, -2, 0, 1}, boolean)) == mixed);
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    const Tensor x = tensor<double>({0.25, NAN, -0.0, INFINITY}, on(dtype));
    CHECK(bytes_of(x.to(DType::boolean)) == mixed);
    Tensor y = zeros({4}, boolean);
    y.copy_(x);
    CHECK(bytes_of(y) == mixed);
  }
  CHECK(bytes_of(full({2}, 7, boolean)) == Bytes{1, 1});
  CHECK(bytes_of(full({2}, 0.5, boolean)) == Bytes{1, 1});
  CHECK(bytes_of(arange(0, 4, 1, boolean)) == Bytes{0, 1, 1, 1});
  const Tensor x = tensor<bool>({true, true, false, true}, boolean);
  Tensor filled = zeros({4}, boolean);
  filled.fill_(2);
  CHECK(bytes_of(filled) == Bytes{1, 1, 1, 1});
  filled.masked_fill_(x, 256);
  CHECK(bytes_of(filled) == Bytes{1, 1, 1, 1});
  CHECK(bytes_of(where(x, x, x)) == mixed);
  CHECK(bytes_of(cat({x, x}, 0)) == Bytes{1, 1, 0, 1, 1, 1, 0, 1});
}
