#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "../../../core/error.h"
#include "../../../core/export.h"
#include "../../../ops/kernels/block_map.h"

namespace sash::cuda::hopper {

/// The order in which the blocks of threads of a persistent kernel take its tiles.
///
/// The block rows of a head make `head_tiles` tiles: each of the first `long_rows` rows makes one
/// tile, a fixed number of the other rows makes one. Tiles are numbered in the order in which they
/// are taken. `place_of` finds the head of a number, and the tile within the head.
///
/// Long rows come first, and alternate between heads. The other tiles follow head after head, so
/// that neighbours read the same keys at about the same time. They alternate between heads too if
/// the call has bounds, which may make any row long or short, and if heads in turn would give some
/// multiprocessors much longer work than others. Long calls of uneven rows take the tiles of a few
/// heads at a time, the longest tiles first. The few short tiles at both ends of a window's heads
/// come last, and even out what multiprocessors have to do.
struct TileOrder {
  int heads = 0;            ///< heads of all batches
  int heads_per_batch = 0;  ///< query heads, or key heads if tiles are made of keys
  /// For tiles of keys: how many ranges the queries of a head are cut into. If there are `splits`
  /// or several query heads share keys, each range of each query head may have tiles of its own:
  /// then `heads_per_batch` is the number of query heads times `splits`.
  int splits = 1;
  int rows = 0, long_rows = 0;  ///< block rows of a head, and how many of them are long
  int head_tiles = 0;           ///< tiles of a head
  int alternating = 0;          ///< how many of the head's first tiles alternate between heads
  /// How many short tiles at the start and at the end of a head's other tiles are taken last.
  int late_first = 0, late_last = 0;
  int tiles = 0;      ///< tiles of all heads
  int direction = 0;  ///< 1 or -1 if the rows of every head ascend or descend, else 0
  const int32_t* row_order = nullptr;  ///< the order of the rows if `direction` is 0
  /// How many tiles have been taken. Unless `ordered`, the first tile of each block of threads does
  /// not count. Null if blocks of threads take tiles in rounds, every other round backwards.
  int* counter = nullptr;
  bool paired = false;  ///< in rounds, each block takes a long tile and a short one of a head
  /// Whether a block of threads takes a tile only when it is about to list its steps. Then all
  /// earlier tiles have been taken, and run soon.
  bool ordered = false;
  bool counted = false;  ///< whether tiles are taken from `counter`, which the launch provides
  /// How many heads alternate at a time, one share of heads after the other. From two on,
  /// `alternating`, `late_first` and `late_last` are not used.
  int together = 1;

  struct Place {
    int head, tile;  ///< the tile within the head
  };
  SASH_HOST_DEVICE Place place_of(int tile) const {
    Place at = in_order(tile);
    if (paired) at.tile = at.tile % 2 == 0 ? at.tile / 2 : head_tiles - 1 - at.tile / 2;
    return at;
  }

  /// How many of a batch's `all` query heads a tile of head h reads, and the first of them.
  SASH_HOST_DEVICE int query_heads(int all) const { return all * splits / heads_per_batch; }
  SASH_HOST_DEVICE int first_query_head(int h, int all) const {
    return h / splits * query_heads(all);
  }

  /// The tile that block of threads `block` of `blocks` takes in round `round`. The block has no
  /// further tile if the number is not below `tiles`.
  SASH_HOST_DEVICE int in_round(int round, int block, int blocks) const {
    return paired ? 2 * (round / 2 * blocks + block) + round % 2
                  : round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
  }

 private:
  SASH_HOST_DEVICE Place in_order(int tile) const {
    if (together > 1) {
      const int first = tile / (together * head_tiles) * together;
      const int of_share = tile - first * head_tiles, left = heads - first;
      const Place at = alternate(of_share, together < left ? together : left);
      return {first + at.head, at.tile};
    }
    if (tile < alternating * heads) return alternate(tile, heads);
    tile -= alternating * heads;
    const int first = alternating + late_first, others = head_tiles - late_last - first;
    if (tile < others * heads) return {tile / others, first + tile % others};
    // The late tiles: the tiles at the end of a head, the longest first, then the tiles at its
    // start.
    const Place at = alternate(tile - others * heads, heads);
    const int of_start = at.tile - late_last;
    return {at.head, of_start < 0 ? head_tiles + of_start : first - 1 - of_start};
  }
  SASH_HOST_DEVICE static Place alternate(int tile, int heads) {
    return {tile % heads, tile / heads};
  }
};

/// What the order of a call's tiles depends on.
struct TileCall {
  const kernels::BlockList& list;
  int64_t list_heads = 1;     ///< heads whose rows the list has, of all batches
  int batches, heads;         ///< of the call
  int64_t blocks;             ///< block rows of a head
  int rows;                   ///< block rows that make a tile
  bool share = false;         ///< whether each long row makes a tile
  bool bounded = false;       ///< whether bounds may hide listed blocks
  int64_t active_blocks = 1;  ///< blocks of threads that run at once
};

/// Whether the longest of the `rows` rows of a list has over 1.5 times the mean number of entries.
inline bool is_uneven(const kernels::BlockList& list, int64_t rows) {
  return 2 * list.longest * rows > 3 * list.entries;
}

/// The heads of a share, where `heads` are cut into the fewest equal shares of `most` or fewer.
inline int even_share(int64_t heads, int64_t most) {
  const int64_t shares = (heads + most - 1) / most;
  return static_cast<int>((heads + shares - 1) / shares);
}

/// The work of the busiest block of threads, divided by the mean. `most_of_tiles` is for tiles that
/// are taken in rounds, and whose lengths decrease evenly within each head. `most_of_pairs` is for
/// pairs of tiles that take equally long.
inline double most_of_tiles(int64_t tiles, int64_t head_tiles, int64_t active_blocks) {
  std::vector<int64_t> load(static_cast<size_t>(active_blocks));
  int64_t of_head = 0, block = 0, direction = 1;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    load[static_cast<size_t>(block)] += head_tiles - of_head;
    if (++of_head == head_tiles) of_head = 0;
    block += direction;
    if (block < 0 || block == active_blocks) {
      direction = -direction;
      block += direction;
    }
  }
  const auto all = static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t{0}));
  return static_cast<double>(*std::ranges::max_element(load) * active_blocks) / all;
}
inline double most_of_pairs(int64_t pairs, int64_t active_blocks) {
  const int64_t rounds = (pairs + active_blocks - 1) / active_blocks;
  return static_cast<double>(rounds * active_blocks) / static_cast<double>(pairs);
}

/// About how much longer a call takes if neighbouring blocks of threads read keys of different
/// heads.
inline constexpr double kFarApart = 1.13;

/// The number of blocks of scores for each multiprocessor from which on taking tiles from a counter
/// is faster.
inline constexpr int64_t kManyBlocks = 512;
/// The same for calls whose bounds may make any tile short. Counting takes 3 microseconds.
inline constexpr int64_t kManyBoundedBlocks = 64;

/// Balances the tiles of heads in which the lengths of rows increase or decrease about evenly from
/// the first row to the last.
inline void balance(TileOrder& order, int64_t active_blocks) {
  TileOrder paired = order;
  paired.paired = true;
  paired.head_tiles += paired.head_tiles % 2;
  paired.tiles = paired.heads * paired.head_tiles;
  const double of_pairs = most_of_pairs(paired.tiles / 2, active_blocks);
  // Many pairs fill their rounds well. If there are few pairs and they do not, single tiles may do
  // so by chance.
  if (of_pairs > 1.05 &&
      most_of_tiles(order.tiles, order.head_tiles, active_blocks) < std::min(of_pairs, kFarApart)) {
    return;
  }
  if (of_pairs < kFarApart) {
    order = paired;
  } else {
    order.alternating = order.head_tiles;
  }
}

/// Puts short tiles last if that saves a part of a round. Many short tiles stay in place, because
/// neighbours among the late tiles read keys of different heads.
inline void put_short_last(TileOrder& order, const kernels::BlockList& list, int64_t rows,
                           int64_t active_blocks) {
  if (order.alternating != list.long_rows) return;
  const int64_t tiles = order.head_tiles - list.long_rows;
  const int64_t first = (list.short_first + rows - 1) / rows;
  const int64_t last = tiles - (order.rows - list.long_rows - list.short_last) / rows;
  if (4 * (first + last) > tiles) return;
  // Short tiles take about half as long as others.
  const int64_t late = (first + last) * order.heads, others = order.tiles - late;
  const int64_t full_rounds = others / active_blocks, left = others % active_blocks;
  const int64_t left_blocks = left > 0 ? std::max(active_blocks, left + late / 2) : late / 2;
  const int64_t rounds = (order.tiles + active_blocks - 1) / active_blocks;
  if (full_rounds * active_blocks + left_blocks >= rounds * active_blocks) return;
  order.late_first = static_cast<int>(first);
  order.late_last = static_cast<int>(last);
}

/// The order of a call in which the tiles of a head follow the order of the list. Throws
/// `ValueError` if there are over 2^31 - 1 tiles.
inline TileOrder list_order(const TileCall& call) {
  const int64_t long_rows = call.share ? call.list.long_rows : 0;
  const int64_t head_tiles = long_rows + (call.blocks - long_rows + call.rows - 1) / call.rows;
  const int64_t tiles = int64_t{call.batches} * call.heads * head_tiles;
  if (tiles > std::numeric_limits<int>::max()) {
    throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(tiles));
  }
  return {.heads = call.batches * call.heads,
          .heads_per_batch = call.heads,
          .rows = static_cast<int>(call.blocks),
          .long_rows = static_cast<int>(long_rows),
          .head_tiles = static_cast<int>(head_tiles),
          .alternating = static_cast<int>(call.bounded ? head_tiles : long_rows),
          .tiles = static_cast<int>(tiles),
          .direction = call.list.direction,
          .row_order = call.list.order};
}

/// The order in which a call is fastest.
inline TileOrder tile_order(const TileCall& call) {
  TileOrder order = list_order(call);
  const int64_t tiles = order.tiles, active = call.active_blocks;
  if (tiles <= active) return order;
  // In rounds, blocks of threads that read the same keys run at the same time. But some blocks of
  // threads idle in the last round, and so do the blocks without a long row while others process
  // long rows.
  const int64_t rounds = (tiles + active - 1) / active;
  const bool idle = 25 * (rounds * active - tiles) > tiles;
  const int64_t entries = call.list.entries * order.heads / call.list_heads;
  const bool many_bounded = call.bounded && entries >= kManyBoundedBlocks * active;
  if (call.list.long_rows > 0 || (call.bounded && idle) || many_bounded) {
    order.counted = true;
  } else if (!call.bounded && order.head_tiles > 1 &&
             is_uneven(call.list, call.blocks * call.list_heads)) {
    if (entries >= kManyBlocks * active) {
      // Tiles of a few heads at a time, the longest first, each taken as late as possible.
      order.counted = order.ordered = true;
      order.together = even_share(order.heads, 8);
      return order;
    }
    balance(order, active);
  }
  if (!call.bounded && !order.paired) put_short_last(order, call.list, call.rows, active);
  return order;
}

/// The order of a call whose tiles wait for tiles that were taken before them. A tile has `rows` of
/// the `blocks` block rows of a head. Tiles ascend, and the tiles of `together` heads alternate.
inline TileOrder ascending_order(int batches, int heads, int64_t blocks, int rows, int together) {
  kernels::BlockList list;
  list.direction = 1;
  TileOrder order = list_order(
      {.list = list, .batches = batches, .heads = heads, .blocks = blocks, .rows = rows});
  order.counted = order.ordered = true;
  order.together = together;
  return order;
}

}  // namespace sash::cuda::hopper
