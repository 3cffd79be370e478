#include "../common/listed.cuh"
#include "backward.cuh"

namespace sash::cuda::hopper {
namespace {

constexpr int kStatsThreads = 256;

/// The work tiles, of two key blocks, in row `row` of the map: the first and the last, or {0, -1}.
__device__ int2 tiles_of(const kernels::BlockList& list, int64_t row) {
  const int2 listed = listed_range(list, row);
  return listed.y < 0 ? make_int2(0, -1) : make_int2(listed.x / 2, listed.y / 2);
}

/// A block of threads for each query block, of `width` features or fewer.
template <class T, int width>
__global__ void __launch_bounds__(kStatsThreads)
    row_stats_kernel(const __grid_constant__ Fused<T> x) {
  constexpr int lanes = width / 8, rows = kStatsThreads / lanes, turns = kBlock / rows;
  const AttentionDims<T>& p = x.dims;
  const auto blocks = static_cast<int>(p.map.query_blocks);
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const Rows<const T> out = x.out.at(at.b, at.h), g = x.g_rows.at(at.b, at.h);
  const int thread = static_cast<int>(threadIdx.x), d = thread % lanes * 8;
  uint4 a[turns] = {}, b[turns] = {};
#pragma unroll
  for (int i = 0; i < turns; ++i) {
    const int row = at.tile * kBlock + i * rows + thread / lanes;
    if (row < p.queries && d < out.width) {
      a[i] = *reinterpret_cast<const uint4*>(out.data + row * out.row + d);
      b[i] = *reinterpret_cast<const uint4*>(g.data + row * g.row + d);
    }
  }
  BlockStats& stats = x.stats[blockIdx.x];
#pragma unroll
  for (int i = 0; i < turns; ++i) {
    float dot = sum_over_lanes<lanes>(dot_of<T>(a[i], b[i], 0));
    const int row = i * rows + thread / lanes, query = at.tile * kBlock + row;
    if (thread % lanes != 0) continue;
    const bool inside = query < p.queries;
    const int64_t place = p.row_of(at.b, at.h) + query;
    const float lse = inside ? x.lse[place] : kInfinity;
    if (inside && x.g_lse) dot -= x.g_lse[place];
    stats.neg_lse[place_of_row(row)] = -lse * kLog2E;
    // dS = P (M dP - D), where M is 0 or `kept`, which the kernel takes out.
    stats.neg_dot[place_of_row(row)] = -dot / p.kept;
  }
  const int64_t map_row = p.first_row(at.b, at.h, blocks) + at.tile;
  const int2 tiles = tiles_of(p.map.by_query, map_row);
  if (thread == 0) {
#pragma unroll
    for (int i = 0; i < width / 64; ++i) x.turns.done[blockIdx.x * (width / 64) + i] = 0;
    if (blockIdx.x == 0) *x.order.counter = 0;
    if (at.b < p.map.batches && at.h < p.map.heads) x.turns.tiles[map_row] = tiles;
  }
  if (tiles.y >= 0) return;
  const Rows<T> dq = x.dq.at(at.b, at.h);
#pragma unroll
  for (int i = 0; i < turns; ++i) {
    const int row = at.tile * kBlock + i * rows + thread / lanes;
    if (row < p.queries && d < dq.width) {
      *reinterpret_cast<uint4*>(dq.data + row * dq.row + d) = uint4{};
    }
  }
}

}  // namespace

template <class T>
void row_stats(const KernelContext& context, const Fused<T>& call, int width) {
  const auto& p = call.dims;
  launch_kernel(context, p.batches * p.heads * p.map.query_blocks, kStatsThreads, 0,
                width == 64 ? row_stats_kernel<T, 64> : row_stats_kernel<T, 128>, call);
}

template void row_stats(const KernelContext&, const Fused<__nv_bfloat16>&, int);
template void row_stats(const KernelContext&, const Fused<__half>&, int);

}  // namespace sash::cuda::hopper
