#pragma once

#include "backward.cuh"

/// What the kernels share that form all gradients in one pass of five products. As in the kernel of
/// dk and dv, keys and values are resident, queries are streamed, and rows of scores are keys. The
/// two groups also exchange dS' in shared memory. Then each group forms a part [64][64] of dQ = dS
/// K over the keys of both groups. The part is added to sums in global memory when it is its turn.
///
/// With dropout, dV = (M P)' g and dS = M P dP - P D, where the elements of M are 0 or `kept`. The
/// kernels compute with 0 and 1 instead: their sums are gradients divided by `kept`, and the
/// statistics have D divided by `kept`.
namespace sash::cuda::hopper {

/// The address at which a lane stores the first of its parts of a group's accumulators [64][64], in
/// a tile.
template <class Square>
__device__ uint32_t first_of_square(const Square& tile) {
  const int matrix = lane() / 8, row = row_of_warp() + matrix % 2 * 8 + lane() % 8;
  return tile.address() +
         static_cast<uint32_t>(row * Square::kRowBytes + (matrix / 2 ^ row % 8) * 16);
}

/// Stores the accumulators of a group, packed, to a tile. `first`: see `first_of_square`.
__device__ inline void store_square(uint32_t first, const uint32_t* words) {
#pragma unroll
  for (uint32_t j = 0; j < 8; j += 2) {
    store_matrices<false>(first ^ j * 16, words[2 * j], words[2 * j + 1], words[2 * j + 2],
                          words[2 * j + 3]);
  }
}

/// The statistics of a thread's columns [64].
class ColumnValues {
 public:
  __device__ void load(const float (&values)[kBlock]) {
    for_columns(values, [&](int i, float x) { value_[i / 4][i % 2] = x; });
  }
  /// The value of the column of accumulator i.
  __device__ float of(int i) const { return value_[i / 4][i % 2]; }

 private:
  float value_[8][2];
};

/// Sets an accumulator in place. The compiler may not move the accumulators of products that run
/// across iterations of a loop.
__device__ inline void set(float& sum, float value) {
  asm volatile("mov.f32 %0, %1;" : "+f"(sum) : "f"(value));
}

/// Reads and writes words in global memory by which work tiles pass turns on.
__device__ inline int load_acquire(const int* x) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(x) : "memory");
  return value;
}
__device__ inline void store_release(int* x, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(x), "r"(value) : "memory");
}

/// Starts to load what dropout keeps of the scores of block row `number` of a step.
template <class T, int kBlockRows, int kBlocks>
__device__ void load_kept(uint32_t (&kept)[kBlocks], const Fused<T>& x,
                          const SharedWorkTile<kBlockRows>& work,
                          const Step<kBlockRows, kBlocks>& step, int number) {
  const AttentionDims<T>& p = x.dims;
  const int64_t first = p.block_of(work.b, step.h);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (step.tile[number][block] == kEmpty) continue;
    const int tile = p.kept_tile(first + step.block[block], work.block_row[number]);
    kept[block] = kept_word<false>(x.kept[tile]);
  }
}

/// With dropout, turns an element of P and of dP' into one of M P and of dS'.
__device__ inline void apply_dropout(float& weight, float& dscore, float neg_dot, bool kept) {
  const float hidden = weight * neg_dot;
  if (!kept) weight = 0;
  dscore = fmaf(weight, dscore, hidden);
}

}  // namespace sash::cuda::hopper
