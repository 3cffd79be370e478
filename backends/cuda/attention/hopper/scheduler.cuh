#pragma once

#include "../../hopper/tile_order.h"
#include "groups.cuh"

/// The tile scheduler of the persistent sm_90 kernels.
///
/// A work tile is kBlockRows consecutive block rows of one head, one for each consumer group, or
/// one long row, whose blocks all groups share.
namespace sash::cuda::hopper {

/// Gives a block of threads its work tiles. All lanes of the warp that lists the work call each
/// function together.
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const TileOrder& order)
      : order_(order), next_(static_cast<int>(blockIdx.x) * (order.paired ? 2 : 1)) {}

  /// The next work tile, or -1.
  __device__ int next() {
    if (order_.ordered && lane() == 0) next_ = atomicAdd(order_.counter, 1);
    const int tile = __shfl_sync(~0u, next_, 0), blocks = static_cast<int>(gridDim.x);
    if (tile >= order_.tiles) return -1;
    if (order_.ordered) return tile;
    if (!order_.counter) {
      next_ = order_.in_round(++round_, static_cast<int>(blockIdx.x), blocks);
    } else if (lane() == 0) {
      next_ = blocks + atomicAdd(order_.counter, 1);
    }
    return tile;
  }

 private:
  const TileOrder& order_;
  int next_, round_ = 0;
};

/// A work tile in shared memory. For a block row past the end, `block_row` is the number of block
/// rows.
template <int kBlockRows>
struct SharedWorkTile {
  int b, h;    ///< b < 0 after the last tile
  int shared;  ///< whether the groups share one block row
  int block_row[kBlockRows];

  /// All lanes of a warp call this. By the reduction the compiler knows that the result is uniform,
  /// so that the stages of the rings, which are variables of the loop over tiles, stay in uniform
  /// registers.
  __device__ bool is_end() const { return __reduce_min_sync(~0u, b) < 0; }
};

/// A work tile in the registers of a producer warp. Lane i has block row i.
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

  /// Tile number `tile` of an order with `rows` block rows a tile.
  template <class T>
  __device__ WorkTile(const TileOrder& s, const AttentionDims<T>& p, int rows, int tile) {
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
      block_row = s.row_order[p.first_row(b, s.first_query_head(h, p.heads), s.rows) + at];
    }
    // Some heads have fewer long rows than others.
    const bool is_long = block_row < 0;
    if (is_long) block_row = ~block_row;
    if (!may_be_long || !__any_sync(~0u, is_long)) return;
    shared = rows > 1;
    const int first = __shfl_sync(~0u, block_row, 0);
    if (lane() < rows) block_row = first;
  }

  /// All lanes call this. Readers wait for `full`, which counts kBlockRows arrivals.
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

/// Publishes that there are no further tiles.
template <int kBlockRows>
__device__ void publish_end(SharedWorkTile<kBlockRows>& work, Barrier& full) {
  if (lane() == 0) work.b = -1;
  full.arrive(lane() < kBlockRows);
}

}  // namespace sash::cuda::hopper
