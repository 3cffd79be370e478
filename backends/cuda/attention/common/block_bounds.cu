#include "block_bounds.h"

#include <climits>

#include "../../../../ops/kernels/block_map.h"
#include "../../runtime/launch.cuh"
#include "lanes.cuh"

namespace sash::cuda {
namespace {

constexpr int kWarps = 4;

/// Adds query block `m` to the ranges {first, -past} of key blocks. Minima do not depend on the
/// order.
__device__ void add_query_block(int2* seen_by, int first, int past, int m) {
  for (int n = first + static_cast<int>(threadIdx.x) % kWarp; n < past; n += kWarp) {
    const int2 known = seen_by[n];
    if (known.x > m) atomicMin(&seen_by[n].x, m);
    if (known.y > -(m + 1)) atomicMin(&seen_by[n].y, -(m + 1));
  }
}

/// A warp for each block of queries.
__global__ void __launch_bounds__(kWarp* kWarps)
    summarise(const int2* bounds, int64_t queries, int64_t query_rows, int64_t blocks_per_head,
              int64_t blocks, int4* summary, int2* seen_by, int64_t key_blocks) {
  const int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (block >= blocks) return;
  const int64_t head = block / blocks_per_head;
  const int64_t first = (block - head * blocks_per_head) * query_rows;
  const int64_t end = min(first + query_rows, queries);
  int4 all = {INT_MAX, INT_MIN, INT_MAX, INT_MIN};
  for (int64_t i = first + threadIdx.x % kWarp; i < end; i += kWarp) {
    const int2 range = bounds[head * queries + i];
    all = {min(all.x, range.x), max(all.y, range.x), min(all.z, range.y), max(all.w, range.y)};
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    all.x = min(all.x, __shfl_xor_sync(~0u, all.x, step));
    all.y = max(all.y, __shfl_xor_sync(~0u, all.y, step));
    all.z = min(all.z, __shfl_xor_sync(~0u, all.z, step));
    all.w = max(all.w, __shfl_xor_sync(~0u, all.w, step));
  }
  if (threadIdx.x % kWarp == 0) summary[block] = all;
  if (!seen_by) return;
  constexpr int keys = static_cast<int>(kernels::kBlockKeys);
  add_query_block(seen_by + head * key_blocks, all.x / keys, (all.w + keys - 1) / keys,
                  static_cast<int>(block - head * blocks_per_head));
}

}  // namespace

void summarise_bounds(const KernelContext& context, View bounds, int64_t query_rows, int4* summary,
                      int2* seen_by, int64_t key_blocks) {
  const int64_t queries = bounds.shape[2], per_head = (queries + query_rows - 1) / query_rows;
  const int64_t blocks = bounds.shape[0] * bounds.shape[1] * per_head;
  if (blocks == 0) return;
  const CardGuard guard(context.device.index);
  if (seen_by) {  // 0x7F7F7F7F is above all block numbers
    const int64_t count = bounds.shape[0] * bounds.shape[1] * key_blocks;
    SASH_CUDA_CHECK(cudaMemsetAsync(seen_by, 0x7F, static_cast<size_t>(count) * sizeof(int2),
                                    stream_of(context)));
  }
  launch_kernel(context, ceil_div(blocks, kWarps), kWarp * kWarps, 0, summarise,
                bounds.ptr<const int2>(), queries, query_rows, per_head, blocks, summary, seen_by,
                key_blocks);
}

}  // namespace sash::cuda
