// Attention whose scores rise or fall along the keys, slowly and fast: an online softmax then
// changes its maximum often, seldom, or late. In all floating dtypes against float64 on the CPU,
// with the same inputs.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kHeads = 2, kLength = 700;

/// out, lse, dq, dk and dv; dq without its last feature, where rounded gradients that add up to 0
/// meet keys as large as the scores.
std::vector<Tensor> results(const std::vector<Tensor>& inputs, const AttentionMask& mask,
                            DType dtype, Device device) {
  std::vector<Tensor> x;
  for (const Tensor& input : inputs) x.push_back(input.to(dtype).to(device).requires_grad_());
  const AttentionWithLse y = attention_with_lse(x[0], x[1], x[2], {.mask = mask});
  std::vector<Tensor> all = grad({y.out}, {x[0], x[1], x[2]}, {x[3].detach()});
  all[0] = all[0].narrow(3, 0, all[0].shape()[3] - 1);
  all.insert(all.begin(), {y.out.detach(), y.lse.detach()});
  return all;
}

/// Scores change by about `slope` from one key to the next.
void check(int64_t depth, double slope, DType dtype, const AttentionMask& mask, Device device) {
  manual_seed(3);
  const Shape shape{1, kHeads, kLength, depth};
  std::vector<Tensor> inputs{randn(shape), randn(shape), randn(shape), randn(shape)};
  // Scores are products divided by sqrt(depth): one feature of the queries is that, and of the keys
  // what has to be added.
  const double scale = std::sqrt(static_cast<double>(depth));
  const Tensor rise = (arange(kLength) * slope).reshape({1, 1, kLength, 1}).to(DType::float32);
  inputs[0] = cat({inputs[0].narrow(3, 0, depth - 1), full({1, kHeads, kLength, 1}, scale)}, 3);
  inputs[1] = cat({inputs[1].narrow(3, 0, depth - 1), rise.expand({1, kHeads, kLength, 1})}, 3);
  for (Tensor& input : inputs) input = input.to(dtype).to(DType::float64);
  const std::vector<Tensor> expected = results(inputs, mask, DType::float64, kCPU);
  const std::vector<Tensor> found = results(inputs, mask, dtype, device);
  // Errors of float32 are those of the scores.
  const double unit = dtype == DType::bfloat16  ? 0x1p-8
                      : dtype == DType::float16 ? 0x1p-11
                                                : 1e-5 + 1e-7 * std::abs(slope) * kLength;
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(depth);
    CAPTURE(slope);
    CAPTURE(name(dtype));
    // Weights below 2^-24 are zeros in float16, and so may be rows of keys that are seen little.
    check_rows(std::vector<std::string>({"out", "lse", "dq", "dk", "dv"})[i], found[i], expected[i],
               2 * unit, dtype == DType::float16 ? 0x1p-8 : 0);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("attention: scores that rise or fall along the keys", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  for (const double slope : {0.01, 0.08, 0.15, 2.0, -0.1}) {
    for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
      check(64, slope, dtype, AttentionMask::causal(), device);
      if (device.is_cpu()) continue;
      check(128, slope, dtype, AttentionMask::causal(), device);
      check(128, slope, dtype, AttentionMask::symmetric_window(150), device);
      check(256, slope, dtype, AttentionMask::causal(), device);
    }
  }
}
