#include "call.cuh"

/// Adds the parts of dk and dv (`Backward::splits`), in order, a thread for four sums.
///
/// Memory traffic: every part is read once, every gradient written once.
namespace sash::cuda::hopper {
namespace {

/// y [B, H_kv, S_k, D] = scale times the sum of its `count` parts. A block of threads has one of
/// the `chunks` of 8 columns of a key block, of a head's `blocks`.
template <class T>
__global__ void __launch_bounds__(kGroup)
    add_parts_kernel(const float4* parts, Rows<T> y, int heads, int keys, int count, int blocks,
                     int chunks, float scale) {
  const auto number = static_cast<int>(blockIdx.x), of_head = blocks * chunks;
  const int head = number / of_head, place = number - head * of_head;
  const int block = place / chunks, chunk = place - block * chunks;
  const int64_t step = int64_t{of_head} * kGroup;  // from part to part
  const float4* const from = parts + head * count * step + place * kGroup + threadIdx.x;
  float sum[4] = {};
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const float4 part = __ldcg(from + i * step);
    sum[0] += part.x;
    sum[1] += part.y;
    sum[2] += part.z;
    sum[3] += part.w;
  }
  const Rows<T> to = y.at(head / heads, head % heads);
  const int d = column_of(chunk, 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = block * kBlock + row_of(half);
    if (key >= keys || d >= y.width) continue;
    *reinterpret_cast<uint32_t*>(to.data + key * to.row + d) =
        pack(std::type_identity<T>{}, scale * sum[2 * half], scale * sum[2 * half + 1]);
  }
}

}  // namespace

template <class T>
void add_parts(const KernelContext& context, const Backward<T>& call, int width) {
  const AttentionDims<T>& p = call.dims;
  const auto blocks = static_cast<int>(p.map.key_blocks);
  const int chunks = width / 8, count = p.heads / p.key_heads * call.splits;
  const auto add = [&](const float4* parts, const Rows<T>& y, float scale) {
    launch_tiles(context, int64_t{p.batches} * p.key_heads * blocks * chunks, kGroup, 0,
                 add_parts_kernel<T>, parts, y, p.key_heads, p.keys, count, blocks, chunks, scale);
  };
  add(call.dk_parts, call.dk, p.scale);
  add(call.dv_parts, call.dv, 1);
}

template void add_parts(const KernelContext&, const Backward<__nv_bfloat16>&, int);
template void add_parts(const KernelContext&, const Backward<__half>&, int);

}  // namespace sash::cuda::hopper
