// Attention over a thousand keys and more, where tiles of keys of all heads add to the gradients of
// the same queries, and where layouts of blocks make a few thousand tiles. In halves against
// float64 on the CPU, with the same inputs.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <sash/sash.h>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2;

/// out, dq, dk, dv and, where every query sees a key, lse.
std::vector<Tensor> results(const AttentionOptions& options, const std::vector<Tensor>& inputs,
                            DType dtype, Device device) {
  std::vector<Tensor> x;
  for (size_t i = 0; i < 3; ++i) {
    x.push_back(inputs[i].to(dtype).to(device).detach().requires_grad_());
  }
  manual_seed(11);
  const AttentionWithLse y = attention_with_lse(x[0], x[1], x[2], options);
  const Tensor g_out = inputs[3].to(dtype).to(device);
  const Tensor g_lse = inputs[4].to(y.lse.dtype()).to(device);
  const bool all_see = x[0].size(2) <= x[1].size(2);
  std::vector<Tensor> all =
      all_see ? grad({y.out, y.lse}, x, {g_out, g_lse}) : grad({y.out}, x, {g_out});
  all.insert(all.begin(), y.out.detach());
  if (all_see) all.push_back(y.lse.detach());
  return all;
}

void check(int64_t queries, int64_t keys, int64_t depth, double dropout, Device device,
           const std::vector<AttentionMask>& masks = {AttentionMask::causal(),
                                                      AttentionMask::window(300, 0),
                                                      AttentionMask::window(200, 60)}) {
  manual_seed(5);
  const DType dtype = DType::bfloat16;
  std::vector<Tensor> inputs;
  for (const Shape& shape :
       {Shape{kBatch, kHeads, queries, depth}, Shape{kBatch, kKeyHeads, keys, depth},
        Shape{kBatch, kKeyHeads, keys, depth}, Shape{kBatch, kHeads, queries, depth},
        Shape{kBatch, kHeads, queries}}) {
    inputs.push_back(randn(shape).to(dtype).to(DType::float64));
  }
  for (const AttentionMask& mask : masks) {
    const AttentionOptions options{.mask = mask, .dropout = dropout};
    const std::vector<Tensor> expected = results(options, inputs, DType::float64, kCPU);
    const std::vector<Tensor> found = results(options, inputs, dtype, device);
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(mask.to_string());
      CAPTURE(queries);
      CAPTURE(keys);
      CAPTURE(depth);
      CAPTURE(dropout);
      check_rows(std::vector<std::string>({"out", "dq", "dk", "dv", "lse"})[i], found[i],
                 expected[i], 0x1p-7);
    }
  }
}

/// A layout of [blocks, blocks] whose row i lists `least` + i % 4 blocks, which are not neighbours.
/// Rows i and i + 1 have no block in common.
AttentionMask layout(int64_t blocks, int64_t block, int64_t least) {
  std::vector<uint8_t> shown(static_cast<size_t>(blocks * blocks));
  for (int64_t row = 0; row < blocks; ++row) {
    for (int64_t i = 0; i < least + row % 4; ++i) {
      shown[static_cast<size_t>(row * blocks + (7 * row + 5 * i) % blocks)] = 1;
    }
  }
  return AttentionMask::block_sparse(tensor(shown, {blocks, blocks}).to(DType::boolean), block);
}

}  // namespace

TEST_CASE_TEMPLATE("mask of many tiles: bfloat16 against float64 on the CPU", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  if (device.is_cpu()) return check(200, 170, 32, 0, device);
  check(1000, 1000, 64, 0, device);
  check(1024, 970, 64, 0, device);
  check(700, 1000, 48, 0, device);
  check(4000, 4000, 64, 0, device,
        {AttentionMask::window(1000, 0), AttentionMask::window(500, 450)});
  check(5200, 5200, 64, 0, device, {AttentionMask::causal()});
  check(2000, 2000, 128, 0, device, {AttentionMask::causal(), AttentionMask::window(1500, 0)});
  check(2050, 1950, 104, 0, device, {AttentionMask::causal(), AttentionMask::window(500, 600)});
  check(2100, 2000, 128, 0, device, {AttentionMask()});
  if (!short_tests()) check(4100, 4160, 64, 0, device, {AttentionMask()});
  check(1024, 970, 64, 0.25, device);
  check(1000, 1000, 128, 0.25, device);
  check(2100, 2100, 64, 0.25, device, {AttentionMask::causal()});
}

TEST_CASE_TEMPLATE("mask layouts: bfloat16 against float64 on the CPU", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  if (device.is_cpu()) return check(1000, 970, 32, 0, device, {layout(16, 64, 0)});
  for (const int64_t depth : {64, 128}) {
    check(4090, 4090, depth, 0, device, {layout(64, 64, 1), layout(32, 128, 1)});
    // Some queries see no key.
    check(4090, 4050, depth, 0, device, {layout(64, 64, 0), layout(32, 128, 0)});
  }
}
