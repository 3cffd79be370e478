// Attention at lengths that choose each way to compute it by themselves: 65,536 tokens, and a
// million rows of one head. 64 rows of each call against plain loops in float64.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/attention_check.h"
#include "../support/attention/row_errors.h"
#include "../support/devices.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kTokens = 1 << 16, kManyRows = 1 << 20, kRowsOfCpu = 1 << 10;

struct Call {
  std::string name;
  int64_t length, heads, kv_heads, depth;
  AttentionMask mask;
  Sees sees;
};

Call windowed(const std::string& name, int64_t length, int64_t heads, int64_t depth, int64_t left) {
  return {name, length, heads, 1, depth, AttentionMask::window(left, 0), [=](const MaskIndex& at) {
            return at.key >= at.query - left && at.key <= at.query;
          }};
}

/// By the pass that computes gradients on Hopper: one that waits (staged), one that adds as it
/// comes (fused), or two.
std::vector<Call> calls(Device device) {
  const auto before = [](const MaskIndex& at) { return at.key <= at.query; };
  const int64_t tokens = device.is_cpu() ? kRowsOfCpu : kTokens;
  const int64_t rows = device.is_cpu() ? 4 * kRowsOfCpu : kManyRows, seen = tokens - tokens / 9;
  const Tensor lengths = tensor<int32_t>({static_cast<int32_t>(seen)}).to(device);
  return {
      {"staged, causal", tokens, 2, 1, 64, AttentionMask::causal(), before},
      {"staged, causal, wide heads", tokens, 2, 2, 128, AttentionMask::causal(), before},
      {"staged, dense", tokens, 1, 1, 64, AttentionMask(), [](const MaskIndex&) { return true; }},
      windowed("staged, window, wide heads", tokens, 2, 128, 1500),
      windowed("fused, window", tokens, 2, 64, 1500),
      windowed("two, narrow window", tokens, 2, 64, 200),
      {"two, global tokens", tokens, 2, 1, 64,
       AttentionMask::window(500, 0) | AttentionMask::global({0, 700}),
       [](const MaskIndex& at) {
         const auto global = [](int64_t i) { return i == 0 || i == 700; };
         return (at.key >= at.query - 500 && at.key <= at.query) || global(at.key) ||
                global(at.query);
       }},
      {"two, lengths", tokens, 2, 1, 64,
       AttentionMask::causal() & AttentionMask::key_lengths(lengths),
       [=](const MaskIndex& at) { return at.key <= at.query && at.key < seen; }},
      windowed("two, a million rows", rows, 1, 64, 200),
      windowed("staged, a million rows", rows, 1, 128, 1500),
  };
}

/// The rule of `check_rows`, for the rows that are known.
void check_some_rows(const std::vector<CheckedRow>& rows, double limit) {
  std::map<std::string, std::vector<double>> sizes;
  for (const CheckedRow& row : rows) sizes[row.what].push_back(row.size);
  for (const CheckedRow& row : rows) {
    std::vector<double>& all = sizes[row.what];
    std::sort(all.begin(), all.end());
    // The last keys, which few queries see, are far below the median.
    const bool query = row.what == "dq";
    const double scale = std::max(row.size, all[all.size() / 2] / (query ? 1 : 16));
    CAPTURE(row.what);
    CAPTURE(row.row);
    const double error = row.error / scale;
    CHECK_MESSAGE(error <= (query ? kScoreRows : kRows) * limit, error);
  }
}

void check(const Call& call, DType dtype, double limit, Device device) {
  CAPTURE(call.name);
  manual_seed(7);
  const auto made = [&](int64_t heads) {
    return randn({1, heads, call.length, call.depth}, {.dtype = dtype, .device = device});
  };
  const Tensor q = made(call.heads).requires_grad_(), k = made(call.kv_heads).requires_grad_(),
               v = made(call.kv_heads).requires_grad_(), g = made(call.heads);
  const AttentionWithLse y = attention_with_lse(q, k, v, {.mask = call.mask});
  const std::vector<Tensor> d = grad({y.out}, {q, k, v}, {g});
  AttentionCheck check({q, k, v, g, y.out, y.lse, d[0], d[1], d[2], call.sees});
  check_some_rows(check.rows(40, 24), limit);
}

}  // namespace

TEST_CASE_TEMPLATE("attention at its length: each way to compute it", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  for (const Call& call : calls(device)) check(call, DType::bfloat16, 0x1p-7, device);
}

TEST_CASE_TEMPLATE("attention at its length: kernels of other cards and dtypes", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const int64_t tokens = device.is_cpu() ? kRowsOfCpu : kTokens;
  check(windowed("float32", tokens, 2, 64, 500), DType::float32, 1e-5, device);
  check(windowed("float16", tokens, 2, 64, 1500), DType::float16, 0x1p-10, device);
  const Environment kernel("SASH_ATTENTION_KERNEL", "mma");
  check(windowed("mma", tokens, 2, 64, 500), DType::bfloat16, 0x1p-7, device);
}

TEST_CASE("attention at its length: rows that are wrong are seen") {
  const Tensor q = randn({1, 1, 300, 8}, {.requires_grad = true});
  const AttentionWithLse y = attention_with_lse(q, q, q);
  const Tensor g = randn({1, 1, 300, 8}), d = zeros({1, 1, 300, 8});
  AttentionCheck check({q, q, q, g, y.out, y.lse, d, d, d, [](const MaskIndex&) { return true; }});
  int wrong = 0, right = 0;
  for (const CheckedRow& row : check.rows(6, 5)) {
    const bool fits = row.error <= 1e-4 * row.size;
    CHECK(fits == (row.what == "out" || row.what == "lse"));
    ++(fits ? right : wrong);
  }
  CHECK(right == 12);
  CHECK(wrong == 6 + 2 * 5);
}
