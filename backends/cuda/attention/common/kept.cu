#include "kept.cuh"

#include "listed.cuh"
#include "scores.cuh"

namespace sash::cuda {
namespace {

constexpr int kBlock = static_cast<int>(kernels::kBlockKeys), kKeptThreads = 128;

/// Bits e: whether dropout keeps element e of 32, four for each value of the counter.
__device__ uint32_t kept_elements(uint64_t seed, uint64_t counter, uint32_t threshold) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const PhiloxBlock block = philox(seed, counter + static_cast<uint64_t>(i / 4));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (block.lane[e] >= threshold) bits |= 1u << (i + e);
    }
  }
  return bits;
}

/// A bit matrix [64][64]: lane i has rows i and i + 32, as two words each. Transposes it.
__device__ void transpose(uint32_t (&rows)[2][2]) {
  uint32_t columns[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll 8
    for (int j = 0; j < 32; ++j) {
      const uint32_t low = __ballot_sync(~0u, rows[0][half] >> j & 1);
      const uint32_t high = __ballot_sync(~0u, rows[1][half] >> j & 1);
      if (lane() == j) {
        columns[half][0] = low;
        columns[half][1] = high;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] = columns[i / 2][i % 2];
}

__device__ void write(uint64_t* tile, const uint32_t (&rows)[2][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    tile[lane() + 32 * half] = rows[half][0] | uint64_t{rows[half][1]} << 32;
  }
}

/// A block of threads for each query block, a warp for each of its blocks of scores.
template <class T>
__global__ void __launch_bounds__(kKeptThreads)
    kept_kernel(const __grid_constant__ AttentionDims<T> p, KeptCall x) {
  const auto blocks = static_cast<int>(p.map.query_blocks);
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int2 listed = listed_range(p.map.by_query, p.first_row(at.b, at.h, blocks) + at.tile);
  const uint64_t base = (p.random.base ? *p.random.base : 0) + p.random.offset;
  for (int n = listed.x + warp(); n <= listed.y; n += kKeptThreads / kWarp) {
    uint32_t rows[2][2];
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const int query = at.tile * kBlock + lane() + 32 * (i / 2);
      const int64_t element = (p.row_of(at.b, at.h) + query) * p.keys + n * kBlock + 32 * (i % 2);
      const uint32_t bits =
          kept_elements(p.random.seed, base + static_cast<uint64_t>(element / 4), p.threshold);
#pragma unroll
      for (int to = 0; to < 4; ++to) {
        if (to == i) rows[to / 2][to % 2] = bits;
      }
    }
    const int64_t tile = (static_cast<int64_t>(blockIdx.x) * p.map.key_blocks + n) * kBlock;
    if (x.by_query) write(x.by_query + tile, rows);
    if (x.by_key) {
      transpose(rows);
      write(x.by_key + tile, rows);
    }
  }
}

}  // namespace

template <class T>
void kept_tiles(const KernelContext& context, const AttentionDims<T>& dims, const KeptCall& call) {
  launch_kernel(context, dims.batches * dims.heads * dims.map.query_blocks, kKeptThreads, 0,
                kept_kernel<T>, dims, call);
}

int64_t attention_kept_bytes(const AttentionInputs& inputs, const AttentionParams& params) {
  const AttentionDims<float> dims(inputs, params, {});
  const int64_t features = std::max(inputs.q.shape[3], inputs.v.shape[3]);
  return !params.bounds && keeps_tiles(dims, features) ? 2 * kept_bytes(dims) : 0;
}

template void kept_tiles(const KernelContext&, const AttentionDims<__nv_bfloat16>&,
                         const KeptCall&);
template void kept_tiles(const KernelContext&, const AttentionDims<__half>&, const KeptCall&);
template void kept_tiles(const KernelContext&, const AttentionDims<float>&, const KeptCall&);

}  // namespace sash::cuda
