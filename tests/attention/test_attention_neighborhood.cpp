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
  std::vector<int64_t> extent, kernel, dilation{}, stride{};
  std::vector<bool> causal{};
};

// NATTEN's rules along an axis, for the coordinates that lie whole steps from `at`.
std::vector<bool> seen_along(int64_t extent, int64_t kernel, int64_t step, int64_t stride,
                             bool causal, int64_t at) {
  std::vector<int64_t> alike;
  for (int64_t c = at % step; c < extent; c += step) alike.push_back(c);
  const auto count = static_cast<int64_t>(alike.size());
  const int64_t own = at / step;
  // The group of `own`: the queries that share a window.
  std::vector<int64_t> group;
  for (int64_t c = 0; c < count; ++c) {
    if (c / stride == own / stride) group.push_back(c);
  }
  std::vector<bool> seen(static_cast<size_t>(extent));
  const auto show = [&](int64_t i) {
    seen[static_cast<size_t>(alike[static_cast<size_t>(i)])] = true;
  };
  if (causal) {
    // The window ends at the last query of the group; each query sees the part up to itself.
    for (int64_t i = 0; i <= own; ++i) {
      if (i > group.back() - kernel) show(i);
    }
    return seen;
  }
  // An incomplete group at the end has the leader of a whole one if there is such a query.
  const int64_t leader = std::min(group.front() + stride / 2, group.back());
  int64_t start = leader - kernel / 2;
  while (start < 0) ++start;
  while (start + kernel > count) --start;
  for (int64_t i = 0; i < kernel; ++i) show(start + i);
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
        const int64_t stride = grid.stride.empty() ? 1 : grid.stride[axis];
        const bool causal = !grid.causal.empty() && grid.causal[axis];
        const auto along = seen_along(extent, grid.kernel[axis], step, stride, causal, i % extent);
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
    {{11}, {5}, {}, {3}},
    {{10}, {4}, {}, {4}},
    {{200}, {32}, {}, {16}},
    {{157}, {33}, {3}, {8}},
    {{11}, {4}, {}, {}, {true}},
    {{300}, {65}, {}, {}, {true}},
    {{151}, {9}, {4}, {}, {true}},
    {{210}, {40}, {}, {7}, {true}},
    {{9, 13}, {4, 5}, {}, {2, 3}, {true, false}},
    {{12, 11}, {3, 4}, {2, 1}, {3, 4}, {false, true}},
    {{5, 6, 7}, {3, 4, 3}, {1, 1, 2}, {2, 4, 1}, {true, false, true}},
    // Lines as long as blocks, so that blocks of several lines are alike.
    {{6, 64}, {3, 9}},
    {{5, 70}, {2, 8}, {2, 3}},
    {{2, 3, 64}, {2, 3, 11}, {}, {}, {true, false, false}},
};

void check_attention(const Grid& grid, Device device) {
  const Tensor visible = expected(grid);
  const AttentionMask mask = AttentionMask::neighborhood(grid.extent, grid.kernel, grid.dilation,
                                                         grid.stride, grid.causal);
  CAPTURE(mask.to_string());
  CHECK(AttentionMask::parse(mask.to_string()).to_string() == mask.to_string());
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

TEST_CASE("neighborhood masks: what strides and causal axes show") {
  // Groups of two queries share the window of the second; the last group has one query.
  CHECK(all_same(AttentionMask::neighborhood({5}, {3}, {}, {2}).to_dense(5, 5).view({5, 5}),
                 tensor(std::vector<bool>{1, 1, 1, 0, 0,  //
                                          1, 1, 1, 0, 0,  //
                                          0, 0, 1, 1, 1,  //
                                          0, 0, 1, 1, 1,  //
                                          0, 0, 1, 1, 1},
                        {5, 5})));
  CHECK(all_same(AttentionMask::neighborhood({5}, {3}, {}, {2}, {true}).to_dense(5, 5).view({5, 5}),
                 tensor(std::vector<bool>{1, 0, 0, 0, 0,  //
                                          1, 1, 0, 0, 0,  //
                                          0, 1, 1, 0, 0,  //
                                          0, 1, 1, 1, 0,  //
                                          0, 0, 1, 1, 1},
                        {5, 5})));
  // With the stride of the kernel, blocks attend to themselves.
  CHECK(all_same(AttentionMask::neighborhood({6}, {3}, {}, {3}).to_dense(6, 6).view({6, 6}),
                 tensor(std::vector<bool>{1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0,
                                          0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1},
                        {6, 6})));
}

TEST_CASE_TEMPLATE("neighborhood masks: grids of one to three axes", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const Grid& grid : kGrids) check_attention(grid, On::device);
}
