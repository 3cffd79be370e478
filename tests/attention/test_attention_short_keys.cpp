// Many queries of few keys, as of pooled keys: parts of dk and dv are summed for each query head
// and for ranges of its queries, and then added.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

struct ShortKeys {
  int64_t batch, heads, kv_heads, queries, keys, width, v_width;
};

std::vector<Tensor> operands(const ShortKeys& c, TensorOptions options) {
  manual_seed(31);
  return {randn({c.batch, c.heads, c.queries, c.width}, options),
          randn({c.batch, c.kv_heads, c.keys, c.width}, options),
          randn({c.batch, c.kv_heads, c.keys, c.v_width}, options),
          randn({c.batch, c.heads, c.queries, c.v_width}, options)};
}

std::vector<Tensor> gradients(const std::vector<Tensor>& qkvg, const AttentionOptions& options) {
  std::vector<Tensor> x;
  for (size_t i = 0; i < 3; ++i) x.push_back(qkvg[i].detach().requires_grad_());
  return grad({attention(x[0], x[1], x[2], options)}, x, {qkvg[3]});
}

/// Every mask that the kernels read in its own way: none, bounds, a list that is the same for all
/// heads, and one for each head with rows that some queries do not see.
std::vector<AttentionMask> masks(const ShortKeys& c, Device device) {
  const auto each = [](const MaskIndex& i) {
    return (i.query / 200 + i.key / 40 + i.head) % 3 == 0 && i.query > 64 * i.head;
  };
  return {AttentionMask(), ended_blocks(c.queries, c.keys * 20, 20, device),
          AttentionMask::window(c.queries / 2, 40),
          AttentionMask::predicate(each, {.per_head = true})};
}

void check_against_float32(const ShortKeys& c, DType dtype, Device device, bool general) {
  const std::vector<Tensor> x = operands(c, {.dtype = dtype, .device = device});
  std::vector<Tensor> wide;
  for (const Tensor& one : x) wide.push_back(one.to(DType::float64));
  for (const AttentionMask& mask : masks(c, device)) {
    CAPTURE(mask.to_string());
    AttentionOptions options{.mask = mask};
    if (general) options.alibi_slopes = nn::alibi_slopes(c.heads, device) * 0.01;
    const std::vector<Tensor> found = gradients(x, options), want = gradients(wide, options),
                              again = gradients(x, options);
    for (size_t i = 0; i < want.size(); ++i) {
      check_rows(std::vector<std::string>{"dq", "dk", "dv"}[i], found[i].to(DType::float64),
                 want[i], dtype == DType::float16 ? 0x1p-9 : 0x1p-6);
      CHECK(eq(found[i], again[i]).all().item<bool>());
    }
    // A key head alone, of the last batch.
    const int64_t readers = c.heads / c.kv_heads;
    std::vector<Tensor> own;
    for (size_t i = 0; i < 4; ++i) {
      const int64_t heads = i == 0 || i == 3 ? readers : 1;
      own.push_back(x[i].narrow(0, c.batch - 1, 1).narrow(1, 0, heads));
    }
    if (general) options.alibi_slopes = options.alibi_slopes.narrow(0, 0, readers);
    const Tensor dk = gradients(own, options)[1];
    CHECK(eq(dk, found[1].narrow(0, c.batch - 1, 1).narrow(1, 0, 1)).all().item<bool>());
  }
}

}  // namespace

TEST_CASE_TEMPLATE("attention of many queries to few keys", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  if (On::device.is_cpu()) {
    return check_against_float32({1, 4, 2, 700, 30, 16, 16}, DType::bfloat16, kCPU, false);
  }
  for (const bool general : {false, true}) {
    CAPTURE(general);
    const auto check = [&](const ShortKeys& c, DType dtype) {
      CAPTURE(c.width);
      check_against_float32(c, dtype, kCUDA, general);
    };
    check({2, 8, 2, 2100, 100, 64, 64}, DType::bfloat16);  // a part for each query head
    check({1, 4, 2, 3300, 135, 64, 64}, DType::bfloat16);
    check({2, 3, 3, 4500, 60, 64, 64}, DType::bfloat16);    // two ranges of queries
    check({1, 6, 2, 6500, 120, 128, 128}, DType::float16);  // three ranges for each query head
    check({1, 4, 2, 4200, 100, 32, 24}, DType::bfloat16);
    check({1, 4, 2, 4200, 100, 96, 80}, DType::bfloat16);
    check({1, 4, 1, 2100, 90, 256, 128}, DType::float16);
  }
}

TEST_CASE("gated_sum: wrong calls") {
  const Tensor gates = zeros({2, 1, 3, 4}), branch = zeros({1, 3, 4, 8});
  const auto wrong = [](const Tensor& g, const std::vector<Tensor>& branches) {
    return [=] { gated_sum(g, branches); };
  };
  const std::string op = ": gated_sum: expected ";
  expect_errors({
      {"ValueError" + op + "one to three branches, got 0", wrong(gates, {})},
      {"ValueError" + op + "one to three branches, got 4",
       wrong(gates, {branch, branch, branch, branch})},
      {"DTypeError" + op + "tensors of one dtype, got float32 and float64",
       wrong(gates, {branch, branch.to(DType::float64)})},
      {"ShapeError" + op + "shape [1, 3, 4, 8], got [1, 3, 4, 7]",
       wrong(gates, {branch, zeros({1, 3, 4, 7})})},
      {"ShapeError" + op + "shape [1, 1, 3, 4], got [2, 1, 3, 4]", wrong(gates, {branch})},
      {"ShapeError" + op + "4 axes, got [3]", wrong(gates, {zeros({3})})},
  });
}
