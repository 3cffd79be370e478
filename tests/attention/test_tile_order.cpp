// The order in which persistent kernels of a card take their tiles, on the host.
#include <doctest/doctest.h>

#include <sash/backends/cuda/hopper/tile_order.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "../support/random_numbers.h"

using namespace sash;
using namespace sash::cuda::hopper;
using sash::testing::RandomNumbers;

namespace {

/// The tiles that each of `blocks` blocks of threads takes in rounds.
std::vector<std::vector<int>> tiles_in_rounds(const TileOrder& order, int blocks) {
  std::vector<std::vector<int>> taken(static_cast<size_t>(blocks));
  for (int block = 0; block < blocks; ++block) {
    for (int round = 0, tile; (tile = order.in_round(round, block, blocks)) < order.tiles;
         ++round) {
      taken[static_cast<size_t>(block)].push_back(tile);
    }
  }
  return taken;
}

/// Every tile of every head has one number, and one block of threads takes it.
void check_order(const TileOrder& order, int active_blocks) {
  REQUIRE(order.tiles == order.heads * order.head_tiles);
  std::set<std::pair<int, int>> places;
  for (int tile = 0; tile < order.tiles; ++tile) {
    const auto [head, of_head] = order.place_of(tile);
    REQUIRE((head >= 0 && head < order.heads && of_head >= 0 && of_head < order.head_tiles));
    places.emplace(head, of_head);
  }
  CHECK(places.size() == static_cast<size_t>(order.tiles));
  if (order.counted) return;  // a counter gives each number once
  std::multiset<int> taken;
  for (const auto& tiles : tiles_in_rounds(order, std::min(active_blocks, order.tiles))) {
    taken.insert(tiles.begin(), tiles.end());
  }
  CHECK(taken.size() == static_cast<size_t>(order.tiles));
  CHECK(std::set<int>(taken.begin(), taken.end()).size() == taken.size());
}

/// A list like that of a causal mask: row r has r + 1 entries, the longest row comes first.
kernels::BlockList causal_list(int64_t rows) {
  kernels::BlockList list;
  list.entries = rows * (rows + 1) / 2;
  list.longest = rows;
  list.direction = -1;
  return list;
}

/// A list of rows with `longest` entries each, but for `ends` shorter ones on either side.
kernels::BlockList window_list(int64_t rows, int64_t longest, int64_t ends) {
  kernels::BlockList list;
  list.entries = rows * longest - ends * longest;
  list.longest = longest;
  list.direction = -1;
  list.short_first = list.short_last = ends;
  return list;
}

}  // namespace

TEST_CASE("tile order: each tile of a call is taken once") {
  RandomNumbers random(1);
  const auto up_to = [&](uint64_t most) { return static_cast<int>(1 + random.below(most)); };
  for (int trial = 0; trial < 300; ++trial) {
    CAPTURE(trial);
    const int64_t blocks = up_to(130);
    kernels::BlockList list =
        trial % 2 == 0 ? causal_list(blocks) : window_list(blocks, 5, blocks / 8);
    if (trial % 3 == 0) list.long_rows = blocks / 4;
    const TileCall call{.list = list,
                        .batches = up_to(2),
                        .heads = up_to(30),
                        .blocks = blocks,
                        .rows = up_to(3),
                        .share = trial % 3 == 0,
                        .bounded = trial % 5 == 0,
                        .active_blocks = up_to(132)};
    check_order(tile_order(call), static_cast<int>(call.active_blocks));
  }
}

TEST_CASE("tile order: long rows are tiles of their own, and come first, head after head") {
  kernels::BlockList list = window_list(40, 5, 0);
  list.long_rows = 3;
  const TileOrder order = tile_order({.list = list,
                                      .batches = 1,
                                      .heads = 4,
                                      .blocks = 40,
                                      .rows = 3,
                                      .share = true,
                                      .active_blocks = 16});
  CHECK(order.head_tiles == 3 + 13);
  CHECK(order.counted);
  CHECK_FALSE(order.ordered);
  for (int tile = 0; tile < 12; ++tile) {
    CHECK(order.place_of(tile).head == tile % 4);
    CHECK(order.place_of(tile).tile == tile / 4);
  }
}

TEST_CASE("tile order: few uneven rows are paired, a long tile with a short one of the head") {
  const kernels::BlockList list = causal_list(48);
  const TileOrder order = tile_order(
      {.list = list, .batches = 1, .heads = 33, .blocks = 48, .rows = 3, .active_blocks = 132});
  REQUIRE(order.paired);
  for (int tile = 0; tile < order.tiles; tile += 2) {
    const auto first = order.place_of(tile), second = order.place_of(tile + 1);
    CHECK(first.head == second.head);
    CHECK(first.tile + second.tile == order.head_tiles - 1);
  }
  // Tile t of a head has about head_tiles - t steps: all blocks of threads have as many.
  std::set<int> loads;
  for (const auto& tiles : tiles_in_rounds(order, 132)) {
    int load = 0;
    for (const int tile : tiles) load += order.head_tiles - order.place_of(tile).tile;
    loads.insert(load);
  }
  CHECK(loads.size() == 1);
}

TEST_CASE("tile order: many uneven rows take few heads at a time, the longest tiles first") {
  const kernels::BlockList list = causal_list(512);
  const TileOrder order = tile_order(
      {.list = list, .batches = 1, .heads = 12, .blocks = 512, .rows = 2, .active_blocks = 132});
  CHECK(order.counted);
  CHECK(order.ordered);
  REQUIRE(order.together == 6);
  int last = 0;
  for (int tile = 0; tile < order.tiles; ++tile) {
    const auto at = order.place_of(tile);
    CHECK(at.head / 6 == tile / (6 * order.head_tiles));
    if (tile % (6 * order.head_tiles) == 0) last = 0;
    CHECK(at.tile >= last);
    last = at.tile;
  }
}

TEST_CASE("tile order: many tiles that bounds may make short are taken as blocks become free") {
  const kernels::BlockList list = causal_list(64);
  for (const bool bounded : {true, false}) {
    const TileOrder order = tile_order({.list = list,
                                        .batches = 1,
                                        .heads = 16,
                                        .blocks = 64,
                                        .rows = 2,
                                        .bounded = bounded,
                                        .active_blocks = 128});
    CHECK(order.counted == bounded);
  }
}

TEST_CASE("tile order: the short tiles of windows come last where that saves a part of a round") {
  const kernels::BlockList list = window_list(64, 9, 4);
  const TileOrder order = tile_order(
      {.list = list, .batches = 1, .heads = 9, .blocks = 64, .rows = 1, .active_blocks = 132});
  REQUIRE(order.late_first == 4);
  const int late = order.late_first + order.late_last, others = order.head_tiles - late;
  for (int tile = 0; tile < order.tiles; ++tile) {
    const int of_head = order.place_of(tile).tile;
    const bool is_late =
        of_head < order.late_first || of_head >= order.head_tiles - order.late_last;
    CHECK(is_late == (tile >= 9 * others));
  }
}

TEST_CASE("tile order: tiles that wait for each other ascend in every head") {
  const TileOrder order = ascending_order(2, 5, 33, 2, 4);
  CHECK((order.counted && order.ordered));
  CHECK(order.head_tiles == 17);
  check_order(order, 132);
  std::vector<int> next(10);
  for (int tile = 0; tile < order.tiles; ++tile) {
    const auto [head, of_head] = order.place_of(tile);
    CHECK(of_head == next[static_cast<size_t>(head)]++);
  }
}

TEST_CASE("tile order: a call has at most 2^31 - 1 tiles") {
  const kernels::BlockList list = window_list(1 << 20, 5, 0);
  CHECK_THROWS_AS(
      tile_order({.list = list, .batches = 1 << 8, .heads = 1 << 8, .blocks = 1 << 20, .rows = 1}),
      ValueError);
}
