#pragma once

#include "../common/scores.cuh"
#include "call.cuh"
#include "mainloop.cuh"

/// What the two backward kernels share. Each kernel recomputes P, from the saved log-sum-exp, and
/// dS in registers. So each sum is computed by one group, in a fixed order.
namespace sash::cuda::hopper {

/// The products of eight pairs of elements, added to `sum`.
template <class T>
__device__ float dot_of(const uint4& a, const uint4& b, float sum) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = unpack(std::type_identity<T>{}, x[i]);
    const float2 w = unpack(std::type_identity<T>{}, y[i]);
    sum = fmaf(u.x, w.x, fmaf(u.y, w.y, sum));
  }
  return sum;
}

/// The loop of the warp that copies queries, their statistics and cotangents.
template <class S, class X, class Shared>
__device__ void copy_queries(const X& x, Shared& shared) {
  copy_steps<S, false>(
      x, shared, S::kBlocks * sizeof(BlockStats),
      [&](int stage, int part, int found, int b, int h, Barrier& full) {
        const int block = found == kNoBlock ? 0 : found;
        copy_rows(shared.a[stage], part, x.q, block * kBlock, h, b, full);
        copy_row(&shared.stats[stage][part], x.stats_map,
                 static_cast<int>(x.dims.block_of(b, h)) + block, full);
      },
      [&](int stage, int part, int block, int b, int h, Barrier& full) {
        const int row = min(block, static_cast<int>(x.dims.map.query_blocks)) * kBlock;
        copy_rows(shared.b[stage], part, x.g, row, h, b, full);
      });
}

/// Tiles have `width` features. A work tile has `rows` blocks of 64 queries or keys, and `split`
/// groups work on each block. A step is one block of the other axis. Ring `b` may have half as many
/// stages as ring `a`. `overlap` and `resident`: see ForwardShape.
template <class T, int width, int rows, int stages, int resident, bool overlap, int split = 1,
          int b_stages = stages>
struct BackwardShape : Groups<rows * split> {
  using Element = T;
  static constexpr int kWidth = width, kBlockRows = rows, kSplit = split, kBlocks = 1;
  static constexpr int kResident = resident, kOperands = 2, kWorkTiles = resident + 1;
  static constexpr int kStages = stages, kStagesOfB = b_stages;
  static constexpr bool kOverlap = overlap, kInParts = true;
  using Rows = Tile<T, width, kBlock>;
  using Resident = Rows;
  using Streamed = Rows;
};

}  // namespace sash::cuda::hopper
