#pragma once

#include "../../hopper/pipeline.cuh"
#include "gather.cuh"

/// The order of work of the forward kernel by key.
///
/// A block of threads takes tiles of a list: 64 rows of q for each of its groups of four warps.
/// While the groups multiply, a warp for each group gathers the rows of the next tile. Another warp
/// copies the keys and values of the block. The sums of P v of a row over the keys of a block,
/// divided by the sum of P, are a partial result. `combine` adds the partial results of a row in
/// the order of its entries.
namespace sash::cuda::selected {

using hopper::PipelineState;

inline constexpr int kTiles = 2;  // of rows, in shared memory

template <class T>
struct ByKey {
  Dims dims;
  Lists lists;
  Segment segment;
  CUtensorMap k, v;
  Rows<const T> q;
  Rows<T> out;
  float* lse;
  // Partial results (KeyWork::result):
  T* sums;        ///< [..., depth]
  float2* stats;  ///< a base to the base 2 and a total, which is 0 if there is none
};

/// `groups` groups of warps, `keys` keys of a step.
template <class T, int depth, int groups, int keys, int stages>
struct ByKeyShape : hopper::Groups<groups> {
  using Element = T;
  using Rows = Tile<T, depth, 64>;
  using Keys = Tile<T, depth, keys>;
  using State = PipelineState<stages>;
  static constexpr int kDepth = depth, kRows = 64 * groups, kKeys = keys, kStages = stages;
};

/// Rows of q that select a block.
template <class S>
struct TileRows {
  int b, key_head;                               ///< b -1: after the last tile
  KeyRange any[S::kGroups], common[S::kGroups];  ///< keys that any row, and all rows see
  KeyRange range[S::kRows];                      ///< keys of the block that a row sees
  int place[S::kRows];                           ///< of the partial result; -1: none

  /// The keys of the steps, at least one.
  __device__ KeyRange keys() const {
    KeyRange all = any[0];
    for (const KeyRange& own : any) all = {min(all.first, own.first), max(all.past, own.past)};
    return {all.first, max(all.past, all.first + 1)};
  }
};

template <class S>
struct ByKeyShared {
  typename S::Rows rows[kTiles][S::kGroups];
  typename S::Keys k[S::kStages], v[S::kStages];
  TileRows<S> tile[kTiles];
  hopper::Ring<typename S::Rows, kTiles> tiles;
  hopper::Ring<typename S::Keys, S::kStages> k_ring, v_ring;
};

/// The loop of the warp that gathers the rows of group `group`.
template <class S, class T>
__device__ void gather_tiles(const ByKey<T>& x, ByKeyShared<S>& shared, int group) {
  const Dims& dims = x.dims;
  auto number = static_cast<int>(blockIdx.x);
  const auto next = [&] {
    while (true) {
      const KeyWork work(dims, x.lists, x.segment, dims.block, number);
      number += static_cast<int>(gridDim.x);
      if (work.list < 0 || work.count > 0) return work;
    }
  };
  PipelineState<kTiles> at;
  KeyWork work = next();
  while (work.list >= 0) {
    const ListRows rows(dims, x.lists, work);
    const Rows<const T> q = x.q.at(work.b, 0);
    auto& tile = shared.tile[at.stage()];
    KeyRange any{work.past, work.first}, common{work.first, work.past};
    const int i = 64 * group + lane();
    const Selector selectors[2] = {rows.selector(dims, i), rows.selector(dims, i + 32)};
    shared.tiles.acquire(at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const RowAt row = rows.row(dims, selectors[half], i + 32 * half);
      copy_gathered(shared.rows[at.stage()][group], 32 * half, q, row.in(q));
      const bool inside = row.query >= 0;
      KeyRange range{work.past, work.first};
      if (inside) {
        const KeyRange seen = dims.range(work.b, row.head, row.query);
        range = {max(seen.first, work.first), min(seen.past, work.past)};
        if (range.first < range.past) {
          any = {min(any.first, range.first), max(any.past, range.past)};
        }
        common = {max(common.first, range.first), min(common.past, range.past)};
      }
      tile.range[i + 32 * half] = range;
      tile.place[i + 32 * half] =
          inside ? work.result(dims, x.segment, selectors[half]) * dims.group + row.in_group : -1;
    }
    any = {__reduce_min_sync(~0u, any.first), __reduce_max_sync(~0u, any.past)};
    common = {__reduce_max_sync(~0u, common.first), __reduce_min_sync(~0u, common.past)};
    if (lane() == 0) {
      tile.any[group] = any;
      tile.common[group] = common;
      if (group == 0) {
        tile.b = work.b;
        tile.key_head = work.key_head;
      }
    }
    work = next();
    mma::wait_for_copies();
    hopper::fence_proxy_async();
    // All lanes arrive, here and in `Group`: compute-sanitizer does not see that __syncwarp orders
    // the accesses of other lanes.
    shared.tiles.full[at.stage()].arrive();
    at.advance();
  }
  shared.tiles.acquire(at);
  if (group == 0 && lane() == 0) shared.tile[at.stage()].b = -1;
  shared.tiles.full[at.stage()].arrive();
}

/// The loop of the warp that copies keys and values.
template <class S, class T>
__device__ void copy_keys(const ByKey<T>& x, ByKeyShared<S>& shared) {
  if (!hopper::elect_one()) return;
  typename S::State at;
  for (PipelineState<kTiles> of;; of.advance()) {
    shared.tiles.full[of.stage()].wait(of.parity());
    const auto& tile = shared.tile[of.stage()];
    const int b = tile.b, h = tile.key_head;
    if (b < 0) return;
    const KeyRange keys = tile.keys();
    shared.tiles.empty[of.stage()].arrive();
    for (int key = keys.first; key < keys.past; key += S::kKeys) {
      const auto copy = [&](typename S::Keys& to, const CUtensorMap& from, hopper::Barrier& full) {
        for (int part = 0; part < S::kKeys / 64; ++part) {
          hopper::copy_rows(to, part, from, key + 64 * part, h, b, full);
        }
      };
      shared.k_ring.acquire(at);
      copy(shared.k[at.stage()], x.k, shared.k_ring.commit(at));
      shared.v_ring.acquire(at);
      copy(shared.v[at.stage()], x.v, shared.v_ring.commit(at));
      at.advance();
    }
  }
}

}  // namespace sash::cuda::selected
