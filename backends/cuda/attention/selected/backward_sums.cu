#include "../common/launch.cuh"
#include "backward.cuh"

/// Adds the parts of gradients, each in a fixed order.
namespace sash::cuda::selected {
namespace {

constexpr int kThreads = 256;

/// Writes dk and dv from the sums of chunks: a thread for 8 elements of a row.
template <class T, int depth>
__global__ void __launch_bounds__(kThreads)
    add_chunks_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
                      const float4* sums) {
  const Dims& dims = x.dims;
  const int parts = key_parts(dims), keys = part_keys(dims);
  const int size = keys * depth / 4;  // of the sums of a part, in pairs of float4
  const int blocks = size / kThreads;
  const int i = static_cast<int>(blockIdx.x) % blocks * kThreads + static_cast<int>(threadIdx.x);
  const int number = static_cast<int>(blockIdx.x) / blocks;
  const int part = number % parts, block = number / parts % dims.blocks;
  const int kv = number / parts / dims.blocks % dims.key_heads;
  const int b = number / parts / dims.blocks / dims.key_heads;
  const bool of_v = i >= size / 2;
  const int column = 8 * i % depth, key = block * dims.block + part * keys + 8 * i / depth % keys;
  if (key >= min((block + 1) * dims.block, dims.keys)) return;
  const int heads = dims.key_heads / lists.heads, batches = dims.batches / dims.index_batches;
  const int list = (b / batches * lists.heads + kv / heads) * dims.blocks + block;
  const int call = b % batches * heads + kv % heads;
  float sum[8] = {};
  for (int chunk = lists.chunk[list]; chunk < lists.chunk[list + 1]; ++chunk) {
    const int64_t at = (int64_t{chunk} * (batches * heads) + call) * parts + part;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 own = __ldcs(sums + 2 * (at * size + i) + half);
      sum[4 * half] += own.x;
      sum[4 * half + 1] += own.y;
      sum[4 * half + 2] += own.z;
      sum[4 * half + 3] += own.w;
    }
  }
  const float scale = of_v ? 1 : static_cast<float>(dims.scale);
  const Rows<T> to = (of_v ? x.dv : x.dk).at(b, kv);
  auto* const words = reinterpret_cast<uint32_t*>(to.data + key * to.row + column);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    words[word] = mma::Operand<T>::pack(scale * sum[2 * word], scale * sum[2 * word + 1]);
  }
}

/// Writes dq of the rows of a segment from their shares: a thread for 8 elements of a row of q.
/// Shares of entries without a block are loaded too, and dropped: so no load waits for a branch.
template <class T, int depth>
__global__ void __launch_bounds__(kThreads)
    add_shares_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
                      const __grid_constant__ Segment segment, const uint4* shares) {
  constexpr int lanes = depth / 8;
  const Dims& dims = x.dims;
  const int parts = key_parts(dims), keys = part_keys(dims), stride = dims.group * lanes;
  const ResultAt at(dims, segment, parts, lanes);
  if (at.query < 0) return;
  const int* const blocks = lists.block + at.row * dims.entries;
  const uint4* const from = shares + at.first * lanes + at.lane;
  PartSum<T> sum;
  for (int part = 0; part < parts; ++part) {
    for (int base = 0; base < dims.entries; base += 8) {
      bool has[8];
      uint4 own[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int entry = min(base + i, dims.entries - 1), block = blocks[entry];
        // The last block may have no keys in a part.
        has[i] = base + i == entry && block >= 0 && block * dims.block + part * keys < dims.keys;
        own[i] = __ldcs(from + (int64_t{entry} * parts + part) * stride);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) sum.add(has[i] ? own[i] : uint4{}, 1);
    }
  }
  const Rows<T> to = x.dq.at(at.b, at.head);
  sum.write(to.data + at.query * to.row, at.lane, 1);
}

}  // namespace

template <class T>
void add_chunks(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                const float* sums) {
  const Dims& dims = call.dims;
  const int64_t blocks = static_cast<int64_t>(dims.batches) * dims.key_heads * dims.blocks *
                         key_parts(dims) * (part_keys(dims) * dims.depth / 4 / kThreads);
  launch_tiles(context, blocks, kThreads, 0,
               dims.depth == 64 ? add_chunks_kernel<T, 64> : add_chunks_kernel<T, 128>, call, lists,
               reinterpret_cast<const float4*>(sums));
}

template <class T>
void add_shares(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                const Segment& segment, const T* shares) {
  const Dims& dims = call.dims;
  const int64_t rows = (segment.past - segment.first) * dims.calls() * dims.group;
  launch_tiles(context, ceil_div(rows * dims.depth / 8, kThreads), kThreads, 0,
               dims.depth == 64 ? add_shares_kernel<T, 64> : add_shares_kernel<T, 128>, call, lists,
               segment, reinterpret_cast<const uint4*>(shares));
}

template void add_chunks(const KernelContext&, const Backward<__nv_bfloat16>&, const Lists&,
                         const float*);
template void add_chunks(const KernelContext&, const Backward<__half>&, const Lists&, const float*);
template void add_shares(const KernelContext&, const Backward<__nv_bfloat16>&, const Lists&,
                         const Segment&, const __nv_bfloat16*);
template void add_shares(const KernelContext&, const Backward<__half>&, const Lists&,
                         const Segment&, const __half*);

}  // namespace sash::cuda::selected
