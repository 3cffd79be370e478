#include <doctest/doctest.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <vector>

#include "../support/attention/row_errors.h"
#include "../support/devices.h"

/// `AttentionMask::neighborhood` against lists of the coordinates that a point sees.
using namespace sash;
using namespace sash::testing;

namespace {

struct Grid {
  std::vector<int64_t> extent, kernel, dilation;
};

// Of the coordinates that lie whole steps from `at`, the `kernel` around it, moved inside.
std::vector<bool> seen_along(int64_t extent, int64_t kernel, int64_t step, int64_t at) {
  std::vector<int64_t> alike;
  for (int64_t c = at % step; c < extent; c += step) alike.push_back(c);
  const auto count = static_cast<int64_t>(alike.size());
  int64_t start = at / step - kernel / 2;
  while (start < 0) ++start;
  while (start + kernel > count) --start;
  std::vector<bool> seen(static_cast<size_t>(extent));
  for (int64_t i = 0; i < kernel; ++i) {
    seen[static_cast<size_t>(alike[static_cast<size_t>(start + i)])] = true;
  }
  return seen;
}

Tensor expected(const Grid& grid) {
  int64_t tokens = 1;
  for (const int64_t extent : grid.extent) tokens *= extent;
  std::vector<bool> visible;
  for (int64_t query = 0; query < tokens; ++query) {
    for (int64_t key = 0; key < tokens; ++key) {
      int64_t i = query, j = key;
      bool sees = true;
      for (size_t axis = grid.extent.size(); axis-- > 0;) {
        const int64_t extent = grid.extent[axis];
        const int64_t step = grid.dilation.empty() ? 1 : grid.dilation[axis];
        const auto along = seen_along(extent, grid.kernel[axis], step, i % extent);
        sees = sees && along[static_cast<size_t>(j % extent)];
        i /= extent;
        j /= extent;
      }
      visible.push_back(sees);
    }
  }
  return tensor(visible, {tokens, tokens});
}

const std::vector<Grid> kGrids{
    {{7}, {3}, {}},
    {{7}, {7}, {}},
    {{9}, {4}, {}},
    {{11}, {3}, {3}},
    {{200}, {33}, {}},
    {{150}, {5}, {7}},
    {{5, 6}, {3, 3}, {}},
    {{13, 17}, {5, 3}, {}},
    {{12, 9}, {3, 3}, {2, 3}},
    {{4, 5, 6}, {3, 1, 3}, {}},
    {{5, 5, 7}, {3, 2, 3}, {1, 2, 2}},
};

void check_attention(const Grid& grid, Device device) {
  const Tensor visible = expected(grid);
  const AttentionMask mask = AttentionMask::neighborhood(grid.extent, grid.kernel, grid.dilation);
  CAPTURE(mask.to_string());
  const int64_t tokens = visible.size(0);
  CHECK(all_same(mask.to_dense(tokens, tokens).view({tokens, tokens}), visible));
  manual_seed(3);
  const auto random = [&] { return randn({1, 2, tokens, 8}).to(device).requires_grad_(); };
  const Tensor q = random(), k = random(), v = random();
  const Tensor got = attention(q, k, v, {.mask = mask});
  const Tensor want = attention(q, k, v, {.mask = AttentionMask(visible.to(device))});
  check_rows("out", got, want, 1e-6);
  got.square().sum().backward();
  const Tensor dk = k.grad();
  Tensor(k).set_grad({});
  want.square().sum().backward();
  check_rows("dk", dk, k.grad(), 1e-5);
}

}  // namespace

TEST_CASE_TEMPLATE("neighborhood masks: grids of one to three axes", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Grid& grid : kGrids) check_attention(grid, On::device);
}
