#pragma once

#include <algorithm>
#include <climits>
#include <numeric>
#include <optional>
#include <vector>

#include "attention_hopper_groups.cuh"

/// The tile scheduler of the persistent sm_90 kernels.
///
/// A work tile is kBlockRows consecutive block rows of one head, one for each consumer group, or
/// one long row, whose blocks all groups share.
namespace sash::cuda::hopper {

/// The work tiles of a call. Long rows come first, and alternate between heads. The others follow
/// head after head, so that neighbours read the same keys at about the same time; within bounds,
/// which may make any row long or short, they alternate too.
struct Schedule {
  int heads;             ///< of all batches
  int heads_per_batch;   ///< query heads, or key heads where tiles are of keys
  int rows, long_rows;   ///< block rows of a head
  int head_tiles;        ///< work tiles of a head
  int alternating;       ///< those of them that alternate between heads, the first ones
  int tiles;             ///< in all
  int direction;         ///< of the block rows, where it is the same in every head
  const int32_t* order;  ///< of the block rows, else
  /// How many tiles have been taken, besides the first of each block of threads if not `ordered`.
  /// Null: tiles are assigned in rounds, every other one backwards.
  int* counter;
  bool paired;  ///< in rounds, each block of threads takes a long tile and a short one of a head
  /// Whether a tile is taken only when its steps are to be listed, so that those before it have
  /// been taken, and soon run.
  bool ordered;
  bool descending;   ///< whether the last tiles of a head come first
  int together = 1;  ///< heads whose tiles alternate, if none alternate between all heads
};

/// Gives a block of threads its work tiles. By all lanes of the warp that lists them.
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const Schedule& schedule)
      : schedule_(schedule), next_(static_cast<int>(blockIdx.x) * (schedule.paired ? 2 : 1)) {}

  /// The next, or -1.
  __device__ int next() {
    if (schedule_.ordered && lane() == 0) next_ = atomicAdd(schedule_.counter, 1);
    const int tile = __shfl_sync(~0u, next_, 0), blocks = static_cast<int>(gridDim.x);
    if (tile >= schedule_.tiles) return -1;
    if (schedule_.ordered) return tile;
    if (!schedule_.counter) {
      const int block = static_cast<int>(blockIdx.x);
      ++round_;
      next_ = schedule_.paired ? 2 * (round_ / 2 * blocks + block) + round_ % 2
                               : round_ * blocks + (round_ % 2 == 0 ? block : blocks - 1 - block);
    } else if (lane() == 0) {
      next_ = blocks + atomicAdd(schedule_.counter, 1);
    }
    return tile;
  }

 private:
  const Schedule& schedule_;
  int next_, round_ = 0;
};

/// A work tile in shared memory. Block rows past the end have the number of block rows.
template <int kBlockRows>
struct SharedWorkTile {
  int b, h;    ///< b < 0: no more tiles
  int shared;  ///< whether the groups share one block row
  int block_row[kBlockRows];

  /// By all lanes of a warp. The reduction makes the answer uniform for the compiler: the ring
  /// stages, which the loop over tiles carries, then stay in uniform registers.
  __device__ bool is_end() const { return __reduce_min_sync(~0u, b) < 0; }
};

/// The same in the registers of a producer warp; lane i has block row i.
struct WorkTile {
  int b, h, block_row;
  bool shared;

  WorkTile() = default;

  template <int kBlockRows>
  __device__ explicit WorkTile(const SharedWorkTile<kBlockRows>& work)
      : b(work.b),
        h(work.h),
        block_row(work.block_row[min(lane(), kBlockRows - 1)]),
        shared(work.shared) {}

  /// Tile number `tile` of a schedule with `rows` block rows a tile.
  template <class T>
  __device__ WorkTile(const Schedule& s, const AttentionDims<T>& p, int rows, int tile) {
    const int alternating = s.alternating * s.heads, rest = s.head_tiles - s.alternating;
    int head, tile_of_head;
    if (tile < alternating) {
      tile_of_head = tile / s.heads;
      head = tile - tile_of_head * s.heads;
    } else {
      head = (tile - alternating) / rest;
      tile_of_head = s.alternating + (tile - alternating) - head * rest;
    }
    if (s.together > 1) {
      const int first = tile / (s.together * s.head_tiles) * s.together;
      const int at = tile - first * s.head_tiles, heads = min(s.together, s.heads - first);
      tile_of_head = at / heads;
      head = first + at - tile_of_head * heads;
    }
    if (s.paired) {
      const int pair = tile_of_head / 2;
      tile_of_head = tile_of_head % 2 == 0 ? pair : s.head_tiles - 1 - pair;
    }
    if (s.descending) tile_of_head = s.head_tiles - 1 - tile_of_head;
    const bool may_be_long = tile_of_head < s.long_rows;
    int at =
        may_be_long ? tile_of_head : s.long_rows + (tile_of_head - s.long_rows) * rows + lane();
    if (may_be_long && lane() > 0) at = s.rows;
    shared = false;
    b = head / s.heads_per_batch;
    h = head - b * s.heads_per_batch;
    block_row = s.rows;
    if (s.direction != 0) {
      if (lane() < rows && at < s.rows) block_row = s.direction > 0 ? at : s.rows - 1 - at;
      return;
    }
    if (lane() < rows && at < s.rows) {
      block_row = s.order[p.first_row(b, h * (p.heads / s.heads_per_batch), s.rows) + at];
    }
    // Some heads have fewer long rows than others.
    const bool is_long = block_row < 0;
    if (is_long) block_row = ~block_row;
    if (!may_be_long || !__any_sync(~0u, is_long)) return;
    shared = rows > 1;
    const int first = __shfl_sync(~0u, block_row, 0);
    if (lane() < rows) block_row = first;
  }

  /// By all lanes. Readers wait for `full`, which counts kBlockRows arrivals.
  template <int kBlockRows>
  __device__ void publish(SharedWorkTile<kBlockRows>& work, Barrier& full) const {
    if (lane() == 0) {
      work.b = b;
      work.h = h;
      work.shared = shared;
    }
    if (lane() < kBlockRows) work.block_row[lane()] = block_row;
    full.arrive(lane() < kBlockRows);
  }
};

/// Publishes that no more tiles come.
template <int kBlockRows>
__device__ void publish_end(SharedWorkTile<kBlockRows>& work, Barrier& full) {
  if (lane() == 0) work.b = -1;
  full.arrive(lane() < kBlockRows);
}

/// The most that a block of threads has to do, divided by the mean, if the tiles of each head
/// shorten evenly and all take them in rounds, or in pairs that take equally long.
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

/// About how much longer a call takes whose neighbours read keys of different heads.
inline constexpr double kFarApart = 1.13;

/// The schedule of a call, with the memory of its counter.
class CallSchedule {
 public:
  /// `rows` block rows make a tile; with `share`, each long one does. `active_blocks` blocks of
  /// threads run at once.
  CallSchedule(const KernelContext& context, const kernels::BlockList& list, int64_t blocks,
               int batches, int heads, int rows, bool share, int map_heads, bool bounded,
               int64_t active_blocks) {
    const int64_t long_rows = share ? list.long_rows : 0;
    const int64_t head_tiles = long_rows + (blocks - long_rows + rows - 1) / rows;
    const int64_t tiles = int64_t{batches} * heads * head_tiles;
    if (tiles > INT_MAX) {
      throw ValueError("attention", "at most 2^31 - 1 tiles", std::to_string(tiles));
    }
    schedule_ = {.heads = batches * heads,
                 .heads_per_batch = heads,
                 .rows = static_cast<int>(blocks),
                 .long_rows = static_cast<int>(long_rows),
                 .head_tiles = static_cast<int>(head_tiles),
                 .alternating = static_cast<int>(bounded ? head_tiles : long_rows),
                 .tiles = static_cast<int>(tiles),
                 .direction = list.direction,
                 .order = list.order,
                 .counter = nullptr,
                 .paired = false,
                 .ordered = false,
                 .descending = false};
    if (tiles <= active_blocks) return;
    // Rounds keep blocks of threads that read the same keys together. But they leave some idle in
    // the last round, and all that have no long row while others have.
    const int64_t rounds = (tiles + active_blocks - 1) / active_blocks;
    const bool idle = 25 * (rounds * active_blocks - tiles) > tiles;
    if (list.long_rows > 0 || (bounded && idle)) {
      counter_.emplace(context, sizeof(int));
      schedule_.counter = counter_->ptr<int>();
      SASH_CUDA_CHECK(cudaMemsetAsync(schedule_.counter, 0, sizeof(int),
                                      static_cast<cudaStream_t>(context.stream.handle)));
    } else if (!bounded && head_tiles > 1 &&
               2 * list.longest * blocks * map_heads > 3 * list.entries) {
      balance(active_blocks);
    }
  }
  const Schedule& schedule() const { return schedule_; }

 private:
  /// Orders the tiles of heads whose rows differ in length, about evenly from the first to the
  /// last.
  void balance(int64_t active_blocks) {
    Schedule paired = schedule_;
    paired.paired = true;
    paired.head_tiles += paired.head_tiles % 2;
    paired.tiles = paired.heads * paired.head_tiles;
    const double of_pairs = most_of_pairs(paired.tiles / 2, active_blocks);
    // Many pairs fill their rounds well. Where few do not, single tiles may by chance.
    if (of_pairs > 1.05 && most_of_tiles(schedule_.tiles, schedule_.head_tiles, active_blocks) <
                               std::min(of_pairs, kFarApart)) {
      return;
    }
    if (of_pairs < kFarApart) {
      schedule_ = paired;
    } else {
      schedule_.alternating = schedule_.head_tiles;
    }
  }

  Schedule schedule_;
  std::optional<Workspace> counter_;
};

/// What a block of threads may have of shared memory.
inline constexpr size_t kSharedBytes = 227 * 1024;

/// Of the card.
inline int multiprocessors(const KernelContext& context) {
  int count = 0;
  SASH_CUDA_CHECK(
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, context.device.index));
  return count;
}

/// Launches a kernel of shape S with one block of threads a multiprocessor, or fewer if there are
/// fewer work tiles. These are made of the rows of queries (`by_query`) or keys of each head; the
/// groups of a block of threads share long rows if `share`. `allowed`: see `launch`.
template <class S, class Shared, bool by_query, class Call>
void launch_persistent(const KernelContext& context, void (*kernel)(Call),
                       std::atomic<uint64_t>& allowed, Call call, bool share = true) {
  static_assert(sizeof(Shared) <= kSharedBytes);
  constexpr auto shared = static_cast<int>(sizeof(Shared));
  const auto& p = call.dims;
  const int active = multiprocessors(context);
  const CallSchedule schedule(context, by_query ? p.map.by_query : p.map.by_key,
                              by_query ? p.map.query_blocks : p.map.key_blocks, p.batches,
                              by_query ? p.heads : p.key_heads, S::kBlockRows, share,
                              static_cast<int>(p.map.batches * p.map.heads),
                              p.bounds.ranges != nullptr, active);
  call.schedule = schedule.schedule();
  launch(context, kernel, allowed, std::min(active, call.schedule.tiles), S::kThreads, shared,
         shared, call);
}

}  // namespace sash::cuda::hopper
