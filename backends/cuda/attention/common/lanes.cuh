#pragma once

/// Where a thread stands among its block's.
namespace sash::cuda {

inline constexpr int kWarp = 32;

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

}  // namespace sash::cuda
