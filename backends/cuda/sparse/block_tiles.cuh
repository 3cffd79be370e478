#pragma once

#include "../../../ops/kernels/sparse.h"
#include "../attention/mma/instructions.cuh"
#include "../elementwise/compute.cuh"

/// What the tensor-core kernels of block-sparse products share: tiles in shared memory, their ring
/// of stages, and fragments read from them.
namespace sash::cuda::sparse {

inline constexpr int kWarps = 8, kBlockThreads = 32 * kWarps;
/// Depth of a stage, and how many there are.
inline constexpr int kDepth = 32, kStages = 4;

/// The address of a 16-byte chunk of a tile whose rows have kChunks chunks. Chunk numbers are xored
/// so that the eight rows that ldmatrix reads at a time are in different banks.
template <int kChunks>
__device__ uint32_t chunk_at(uint32_t tile, int row, int chunk) {
  constexpr int spread = kChunks < 8 ? kChunks : 8, rows_per_line = 8 / spread;
  const int place = chunk ^ (row / rows_per_line % spread);
  return tile + static_cast<uint32_t>((row * kChunks + place) * 16);
}

/// Runs all steps through a ring of stages: `load(step, stage)` starts the copies of a step, and
/// `multiply(stage)` multiplies them.
template <class Load, class Multiply>
__device__ void run_stages(int steps, Load&& load, Multiply&& multiply) {
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) load(s, s);
    mma::end_group();
  }
  for (int s = 0; s < steps; ++s) {
    mma::wait_for_groups<kStages - 2>();
    __syncthreads();  // the step has arrived, and no warp reads the stage that is filled next
    const int ahead = s + kStages - 1;
    if (ahead < steps) load(ahead, ahead % kStages);
    mma::end_group();
    multiply(s % kStages);
  }
  mma::wait_for_groups<0>();
  __syncthreads();
}

/// 16 rows and 16 columns from (row, 8 chunk) of a tile [rows][depth] as a left operand.
template <int kChunks>
__device__ void load_left(uint32_t (&a)[4], uint32_t tile, int row, int chunk, int lane) {
  mma::load_matrices(a, chunk_at<kChunks>(tile, row + lane % 16, chunk + lane / 16));
}

/// The same for a tile [depth][rows], from depth `depth` and row 8 chunk on.
template <int kChunks>
__device__ void load_left_transposed(uint32_t (&a)[4], uint32_t tile, int depth, int chunk,
                                     int lane) {
  mma::load_transposed(
      a, chunk_at<kChunks>(tile, depth + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}

/// Two right operands of a tile [columns][depth]: columns [column, column + 8) and [column + 8,
/// column + 16).
template <int kChunks>
__device__ void load_right(uint32_t (&b)[4], uint32_t tile, int column, int chunk, int lane) {
  mma::load_matrices(
      b, chunk_at<kChunks>(tile, column + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}

/// The same for a tile [depth][columns], from depth `depth` and column 8 chunk on.
template <int kChunks>
__device__ void load_right_transposed(uint32_t (&b)[4], uint32_t tile, int depth, int chunk,
                                      int lane) {
  mma::load_transposed(b, chunk_at<kChunks>(tile, depth + lane % 16, chunk + lane / 16));
}

}  // namespace sash::cuda::sparse
