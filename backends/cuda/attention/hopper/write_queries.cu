#include "../../runtime/dependent_launch.cuh"
#include "turns.cuh"

/// Starts when the first multiprocessors have no further work tiles of the staged pass. By then all
/// blocks of threads of the staged pass run, so every query block gets its last turn.
namespace sash::cuda::hopper {
namespace {

/// Writes dq of a query block after the block has had `turns` turns.
template <class T, int parts>
__device__ void write(const Fused<T>& x, const TilePosition& at, int turns) {
  const AttentionDims<T>& p = x.dims;
  if (threadIdx.x < parts) {
    const int* const done = x.turns.done + int64_t{blockIdx.x} * parts + threadIdx.x;
    while (load_acquire(done) != turns) __nanosleep(500);
  }
  __syncthreads();
  const int part = static_cast<int>(threadIdx.x) / kGroup;
  const float4* const from =
      x.turns.sums + (int64_t{blockIdx.x} * parts + part) * (8 * kGroup) + threadIdx.x % kGroup;
  float sum[32];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 chunk = __ldcg(from + i * kGroup);
    sum[4 * i] = chunk.x;
    sum[4 * i + 1] = chunk.y;
    sum[4 * i + 2] = chunk.z;
    sum[4 * i + 3] = chunk.w;
  }
  Rows<T> to = x.dq.at(at.b, at.h);
  to.data += 64 * part;
  to.width -= 64 * part;
  const float scale = p.scale * p.kept;
  const int first = at.tile * kBlock;
  store_rows(to, first, p.queries - first, sum, {scale, scale});
}

/// A block of threads for each query block, a group for each part of it.
template <class T, int parts>
__global__ void __launch_bounds__(parts* kGroup)
    write_queries_kernel(const __grid_constant__ Fused<T> x) {
  const AttentionDims<T>& p = x.dims;
  const auto blocks = static_cast<int>(p.map.query_blocks);
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  const int2 tiles = x.turns.tiles[p.first_row(at.b, at.h, blocks) + at.tile];
  // Without a work tile it has no sums, and zeros already.
  if (tiles.y >= 0) write<T, parts>(x, at, tiles.y - tiles.x + 1);
  // The end of this kernel is that of the staged pass too.
  if (blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();
}

}  // namespace

template <class T>
void write_queries(const KernelContext& context, const Fused<T>& call, int width) {
  const auto& p = call.dims;
  const int64_t blocks = int64_t{p.batches} * p.heads * p.map.query_blocks;
  const auto run = [&]<int parts>(std::integral_constant<int, parts>) {
    const CardGuard guard(context.device.index);
    allow_shared_memory<write_queries_kernel<T, parts>>(context.device.index, 0);
    launch_dependent(context, {.grid = blocks, .threads = parts * kGroup},
                     write_queries_kernel<T, parts>, call);
  };
  width == 64 ? run(std::integral_constant<int, 1>()) : run(std::integral_constant<int, 2>());
}

template void write_queries(const KernelContext&, const Fused<__nv_bfloat16>&, int);
template void write_queries(const KernelContext&, const Fused<__half>&, int);

}  // namespace sash::cuda::hopper
