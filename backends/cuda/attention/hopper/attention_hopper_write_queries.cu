#include "attention_hopper_call.cuh"

namespace sash::cuda::hopper {
namespace {

/// A block of threads for each query block, a group for each part of it.
template <class T, int parts>
__global__ void __launch_bounds__(parts* kGroup)
    write_queries_kernel(const __grid_constant__ Fused<T> x) {
  const AttentionDims<T>& p = x.dims;
  const auto blocks = static_cast<int>(p.map.query_blocks);
  const TilePosition at(static_cast<int>(blockIdx.x), blocks, p.heads);
  // Without a work tile it has no sums, and zeros already.
  if (x.turns.tiles[p.first_row(at.b, at.h, blocks) + at.tile].y < 0) return;
  const int part = static_cast<int>(threadIdx.x) / kGroup;
  const float4* const from =
      x.turns.sums + (int64_t{blockIdx.x} * parts + part) * (8 * kGroup) + threadIdx.x % kGroup;
  float sum[32];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 chunk = __ldcs(from + i * kGroup);
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

}  // namespace

template <class T>
void write_queries(const KernelContext& context, const Fused<T>& call, int width) {
  const auto& p = call.dims;
  const auto blocks = static_cast<unsigned>(p.batches * p.heads * p.map.query_blocks);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const CardGuard guard(context.device.index);
  if (width == 64) {
    write_queries_kernel<T, 1><<<blocks, kGroup, 0, stream>>>(call);
  } else {
    write_queries_kernel<T, 2><<<blocks, 2 * kGroup, 0, stream>>>(call);
  }
  SASH_CUDA_CHECK(cudaGetLastError());
}

template void write_queries(const KernelContext&, const Fused<__nv_bfloat16>&, int);
template void write_queries(const KernelContext&, const Fused<__half>&, int);

}  // namespace sash::cuda::hopper
