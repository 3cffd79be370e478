// Attention over masks with a few tokens that see all and are seen by all: kernels may share the
// long block rows that these make among several groups of threads. And over rows that list few
// blocks in common. In halves against float64 on the CPU, with the same inputs.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kLength = 1100;

/// A layout of blocks of 64 in which block 2 h of head h, if h < 3, sees all and is seen by all.
Tensor layout() {
  constexpr int64_t blocks = (kLength + 63) / 64;
  std::vector<uint8_t> shown;
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t j = 0; j < blocks; ++j) {
        shown.push_back(i == j || (h < 3 && (i == 2 * h || j == 2 * h)));
      }
    }
  }
  return tensor(shown, {kHeads, blocks, blocks}).to(DType::boolean);
}

struct Masked {
  std::string name;
  AttentionMask (*mask)(Device);
};

const std::vector<Masked>& masks() {
  static const std::vector<Masked> all{
      {"global tokens",
       [](Device) {
         return AttentionMask::window(70, 3) | AttentionMask::global({5, 700, 1099});
       }},
      {"of some heads",
       [](Device device) { return AttentionMask::block_sparse(layout().to(device), 64); }},
      {"within bounds",
       [](Device device) {
         const Tensor lengths = tensor<int32_t>({700, 1100}, {.device = device});
         return (AttentionMask::symmetric_window(40) | AttentionMask::global({130})) &
                AttentionMask::key_lengths(lengths);
       }},
      {"scattered, within bounds", [](Device device) {
         const Tensor lengths = tensor<int32_t>({700, 1100}, {.device = device});
         return AttentionMask::random_blocks(2, 1, 64) & AttentionMask::key_lengths(lengths);
       }}};
  return all;
}

/// out, lse, dq, dk, dv, and the gradient of a relative bias.
std::vector<Tensor> results(const Masked& masked, bool options, const std::vector<Tensor>& inputs,
                            DType dtype, Device device) {
  std::vector<Tensor> x;
  for (const Tensor& input : inputs) x.push_back(input.to(dtype).to(device).requires_grad_());
  AttentionOptions with{.mask = masked.mask(device)};
  if (options) {
    with.softcap = 3;
    with.dropout = 0.25;
    with.relative_bias = x[3];
  }
  manual_seed(11);
  const AttentionWithLse y = attention_with_lse(x[0], x[1], x[2], with);
  const Tensor g_out = x[4].detach(), g_lse = inputs[5].to(y.lse.dtype()).to(device);
  std::vector<Tensor> wanted(x.begin(), x.begin() + (options ? 4 : 3));
  std::vector<Tensor> all = grad({y.out, y.lse}, wanted, {g_out, g_lse});
  all.insert(all.begin(), {y.out.detach(), y.lse.detach()});
  return all;
}

void check(int64_t depth, DType dtype, bool options, Device device) {
  manual_seed(5);
  std::vector<Tensor> inputs;
  for (const Shape& shape :
       {Shape{kBatch, kHeads, kLength, depth}, Shape{kBatch, kKeyHeads, kLength, depth},
        Shape{kBatch, kKeyHeads, kLength, depth}, Shape{kHeads, 31},
        Shape{kBatch, kHeads, kLength, depth}, Shape{kBatch, kHeads, kLength}}) {
    inputs.push_back(randn(shape).to(dtype).to(DType::float64));
  }
  const double unit = dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-11;
  for (const Masked& masked : masks()) {
    const std::vector<Tensor> expected = results(masked, options, inputs, DType::float64, kCPU);
    const std::vector<Tensor> found = results(masked, options, inputs, dtype, device);
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(masked.name);
      CAPTURE(depth);
      CAPTURE(options);
      check_rows(std::vector<std::string>({"out", "lse", "dq", "dk", "dv", "drelative"})[i],
                 found[i], expected[i], 2 * unit);
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("mask long rows: half types against float64 on the CPU", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  if (device.is_cpu()) return check(32, DType::bfloat16, true, device);
  for (const int64_t depth : {32, 64, 96, 128, 256}) {
    check(depth, depth % 64 == 0 ? DType::bfloat16 : DType::float16, false, device);
  }
  check(64, DType::bfloat16, true, device);
  check(128, DType::float16, true, device);
}
