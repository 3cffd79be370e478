#pragma once

#include "groups.cuh"

/// The tile scheduler of the persistent sm_90 kernels.
///
/// A work tile is kBlockRows consecutive block rows of one head, one for each consumer group, or
/// one long row, whose blocks all groups share.
namespace sash::cuda::hopper {

/// The work tiles of a call. Long rows come first, and alternate between heads. The others follow
/// head after head, so that neighbours read the same keys at about the same time; they alternate
/// too within bounds, which may make any row long or short, and where heads in turn would leave
/// some multiprocessors much more to do than others; long calls of uneven rows take the tiles of a
/// few heads at a time, the longest first. The few short tiles at both ends of a window's
/// heads come last, and even out what multiprocessors have to do.
struct Schedule {
  int heads;                  ///< of all batches
  int heads_per_batch;        ///< query heads, or key heads where tiles are of keys
  int rows, long_rows;        ///< block rows of a head
  int head_tiles;             ///< work tiles of a head
  int alternating;            ///< those of them that alternate between heads, the first ones
  int late_first, late_last;  ///< short ones, at the start and the end of the others
  int tiles;                  ///< in all
  int direction;              ///< of the block rows, where it is the same in every head
  const int32_t* order;       ///< of the block rows, else
  /// How many tiles have been taken, besides the first of each block of threads if not `ordered`.
  /// Null: tiles are assigned in rounds, every other one backwards.
  int* counter;
  bool paired;  ///< in rounds, each block of threads takes a long tile and a short one of a head
  /// Whether a tile is taken only when its steps are to be listed, so that those before it have
  /// been taken, and soon run.
  bool ordered;
  /// Heads whose tiles alternate, one share of heads after the other. If more than one,
  /// `alternating`, `late_first` and `late_last` do not count.
  int together = 1;

  struct Place {
    int head, tile;  ///< the tile of those of the head
  };
  __device__ Place place_of(int tile) const {
    Place at = in_order(tile);
    if (paired) at.tile = at.tile % 2 == 0 ? at.tile / 2 : head_tiles - 1 - at.tile / 2;
    return at;
  }

 private:
  __device__ Place in_order(int tile) const {
    if (together > 1) {
      const int first = tile / (together * head_tiles) * together;
      const Place at = alternate(tile - first * head_tiles, min(together, heads - first));
      return {first + at.head, at.tile};
    }
    if (tile < alternating * heads) return alternate(tile, heads);
    tile -= alternating * heads;
    const int first = alternating + late_first, others = head_tiles - late_last - first;
    if (tile < others * heads) return {tile / others, first + tile % others};
    // Those of the end, the longest first, then those of the start.
    const Place at = alternate(tile - others * heads, heads);
    const int of_start = at.tile - late_last;
    return {at.head, of_start < 0 ? head_tiles + of_start : first - 1 - of_start};
  }
  __device__ static Place alternate(int tile, int heads) { return {tile % heads, tile / heads}; }
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
    const auto [head, tile_of_head] = s.place_of(tile);
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

}  // namespace sash::cuda::hopper
