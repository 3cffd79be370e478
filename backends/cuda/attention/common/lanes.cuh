#pragma once

#include "../../reduce/reduce_block.cuh"

/// The place of a thread in its block, and of a block in its grid.
namespace sash::cuda {

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

/// The sum of x over each aligned group of `lanes` lanes. All lanes of a warp call this.
template <int lanes = kWarp, class T>
__device__ T sum_over_lanes(T x) {
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

/// The sum and the maximum of x over the four lanes that share the rows of accumulators.
__device__ inline float sum_over_quad(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ inline float max_over_quad(float x) {
  x = max(x, __shfl_xor_sync(~0u, x, 1));
  return max(x, __shfl_xor_sync(~0u, x, 2));
}

/// The head (b, h) and the tile of block of threads `index`, in a grid with `tiles` blocks for each
/// head.
struct TilePosition {
  int b, h, tile;

  __device__ TilePosition(int index, int tiles, int heads)
      : b(index / tiles / heads), h(index / tiles % heads), tile(index % tiles) {}
};

}  // namespace sash::cuda
