#pragma once

/// The place of a thread in its block, and of a block in its grid.
namespace sash::cuda {

inline constexpr int kWarp = 32;

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

/// Block of threads `index` of a grid with `tiles` blocks for each head (b, h).
struct TilePosition {
  int b, h, tile;

  __device__ TilePosition(int index, int tiles, int heads)
      : b(index / tiles / heads), h(index / tiles % heads), tile(index % tiles) {}
};

}  // namespace sash::cuda
