#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/tensor/distributed/group.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <cmath>
#include <vector>

#include "../check_error.h"

using namespace sash;
using distributed::Group;
using distributed::ReduceOp;
using distributed::world;

namespace {

// Rank r's tensor, the same wherever it is made: small whole numbers, so that sums are exact.
Tensor values_of(int rank, int64_t count, DType dtype) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((i * 7 + rank * 5) % 13 + 1));
  }
  return tensor(values, {count}).to(dtype).to(default_device());
}

double reduced(int64_t i, int ranks, ReduceOp reduction) {
  double result = reduction == ReduceOp::min ? 1e9 : 0;
  for (int r = 0; r < ranks; ++r) {
    const auto x = static_cast<double>((i * 7 + r * 5) % 13 + 1);
    if (reduction == ReduceOp::min) {
      result = std::min(result, x);
    } else if (reduction == ReduceOp::max) {
      result = std::max(result, x);
    } else {
      result += reduction == ReduceOp::mean ? x / ranks : x;
    }
  }
  return result;
}

void check_reduced(const Tensor& x, int64_t first, int ranks, ReduceOp reduction) {
  const std::vector<double> found = x.to(DType::float64).to(kCPU).to_vector<double>();
  const double tolerance = x.dtype() == DType::bfloat16 ? 0.01 : 1e-3;
  for (size_t i = 0; i < found.size(); ++i) {
    const double expected = reduced(first + static_cast<int64_t>(i), ranks, reduction);
    if (!(std::abs(found[i] - expected) <= tolerance * std::abs(expected))) {
      FAIL_CHECK("element ", i, ": ", found[i], " for ", expected);
      return;
    }
  }
}

}  // namespace

TEST_CASE("ranks: all_reduce of each dtype and reduction") {
  const Group all = world();
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16,
                            DType::int32, DType::int64}) {
    for (const ReduceOp how : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max}) {
      if (how == ReduceOp::mean && !is_floating(dtype)) continue;
      for (const int64_t count : {0, 1, 3, 1000, 70000}) {
        CAPTURE(name(dtype));
        CAPTURE(count);
        const Tensor x = values_of(all.rank(), count, dtype);
        all.all_reduce(x, how);
        check_reduced(x, 0, all.size(), how);
      }
    }
  }
  CHECK(all.all_reduce(1.0 + all.rank()) == all.size() * (all.size() + 1) / 2.0);
}

TEST_CASE("ranks: several tensors as one operation") {
  const Group all = world();
  const Tensor a = values_of(all.rank(), 5, DType::float32);
  const Tensor b = values_of(all.rank(), 900, DType::bfloat16);
  all.all_reduce({a, b});
  check_reduced(a, 0, all.size(), ReduceOp::sum);
  check_reduced(b, 0, all.size(), ReduceOp::sum);
}

TEST_CASE("ranks: reduce_scatter, all_gather, broadcast") {
  const Group all = world();
  const int n = all.size();
  const Tensor part = all.reduce_scatter(values_of(all.rank(), 60 * n, DType::float32));
  CHECK(part.shape() == Shape{60});
  check_reduced(part, 60 * all.rank(), n, ReduceOp::sum);

  const Tensor whole = all.all_gather(full({2, 3}, all.rank(), {.dtype = DType::int64}));
  CHECK(whole.shape() == Shape{2 * n, 3});
  const std::vector<int64_t> rows = whole.to(kCPU).to_vector<int64_t>();
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] == static_cast<int64_t>(i) / 6);

  const Tensor x = values_of(all.rank(), 10, DType::float64);
  all.broadcast(x, n - 1);
  CHECK(x.to(kCPU).to_vector<double>() ==
        values_of(n - 1, 10, DType::float64).to(kCPU).to_vector<double>());
}

TEST_CASE("ranks: messages around a ring, and two at once") {
  const Group all = world();
  const int n = all.size(), next = (all.rank() + 1) % n, before = (all.rank() + n - 1) % n;
  const Tensor own = values_of(all.rank(), 33, DType::float32);
  const Tensor got = zeros({33});
  all.exchange({{next, own}}, {{before, got}});
  CHECK(got.to(kCPU).to_vector<float>() ==
        values_of(before, 33, DType::float32).to(kCPU).to_vector<float>());

  const Tensor from_before = zeros({33}), from_next = zeros({33});
  all.exchange({{next, own}, {before, own + 1.0}}, {{before, from_before}, {next, from_next}});
  CHECK(from_before.to(kCPU).to_vector<float>() == got.to(kCPU).to_vector<float>());
  if (all.rank() == 0) {
    all.send(own, 1);
  } else if (all.rank() == 1) {
    all.receive(got, 0);
    CHECK(got.to(kCPU).to_vector<float>() ==
          values_of(0, 33, DType::float32).to(kCPU).to_vector<float>());
  }
  all.barrier();
}

TEST_CASE("ranks: a group is split") {
  const Group all = world();
  const Group part = all.split(all.rank() % 2);
  CHECK(part.rank() == all.rank() / 2);
  CHECK(part.size() == (all.size() + 1 - all.rank() % 2) / 2);
  const Tensor x = full({3}, 1 + all.rank(), {.dtype = DType::int64});
  part.all_reduce(x);
  int64_t sum = 0;
  for (int r = all.rank() % 2; r < all.size(); r += 2) sum += 1 + r;
  CHECK(x.to(kCPU).to_vector<int64_t>() == std::vector<int64_t>(3, sum));
}

TEST_CASE("ranks: sums of floats have the same bits each time, and on all ranks") {
  const Group all = world();
  manual_seed(static_cast<uint64_t>(all.rank()));
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Tensor x = randn({100003}, {.dtype = dtype});
    const Tensor first = x.clone(), again = x.clone();
    all.all_reduce(first);
    all.all_reduce(again);
    const std::vector<double> bits = first.to(DType::float64).to(kCPU).to_vector<double>();
    CHECK(bits == again.to(DType::float64).to(kCPU).to_vector<double>());
    const Tensor of_first = first.clone();
    all.broadcast(of_first);
    CHECK(bits == of_first.to(DType::float64).to(kCPU).to_vector<double>());
  }
}

TEST_CASE("ranks: wrong calls are refused before any rank waits") {
  const Group all = world();
  const Tensor x = ones({2, 3});
  CHECK_ERROR(all.all_reduce(Tensor()), ValueError,
              "Group.all_reduce: expected a defined tensor, got an undefined one");
  CHECK_ERROR(all.all_reduce(x.permute({1, 0})), ValueError,
              "Group.all_reduce: expected a contiguous tensor, got strides of a view");
  CHECK_ERROR(
      all.broadcast(x, 99), ValueError,
      "Group.broadcast: expected a rank in [0, " + std::to_string(all.size()) + "), got 99");
  CHECK_ERROR(all.all_reduce(ones({2}, {.dtype = DType::int64}), ReduceOp::mean), DTypeError,
              "Group.all_reduce: expected a floating dtype for a mean, got int64");
  CHECK_ERROR(all.all_reduce(ones({2}, {.requires_grad = true})), AutogradError,
              "Group.all_reduce: expected a tensor that does not require grad");
  CHECK_ERROR(all.split(-1), ValueError, "Group.split: expected a color of at least 0, got -1");
  CHECK_ERROR(all.all_reduce(zeros({2}, {.dtype = DType::boolean}), ReduceOp::sum), DTypeError,
              "Group.all_reduce: expected numbers for a sum, got bool");
  const std::string size = std::to_string(all.size());
  CHECK_ERROR(all.reduce_scatter_({ones({1})}), ShapeError,
              "Group.reduce_scatter_: expected elements that " + size + " divides, got [1]");
  CHECK_ERROR(all.all_gather_({ones({1})}), ShapeError,
              "Group.all_gather_: expected elements that " + size + " divides, got [1]");
  CHECK_ERROR(all.reduce_scatter(ones({1, 8})), ShapeError,
              "Group.reduce_scatter: expected a first axis that " + size + " divides, got [1, 8]");
}
