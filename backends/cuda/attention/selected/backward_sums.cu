#include "../../hopper/wgmma.cuh"
#include "../common/launch.cuh"
#include "backward.cuh"

/// Adds the parts of gradients, each in a fixed order.
namespace sash::cuda::selected {
namespace {

constexpr int kThreads = 256;

/// Writes dk and dv of 64 keys of a block from the sums of its chunks: a thread for two elements.
template <class T, int depth>
__global__ void __launch_bounds__(kThreads)
    add_chunks_kernel(const __grid_constant__ Backward<T> x, const __grid_constant__ Lists lists,
                      const float* sums) {
  constexpr int pairs = kKeys * depth;  // of elements, of dk and dv
  const Dims& dims = x.dims;
  const int parts = key_parts(dims);
  const int heads = dims.key_heads / lists.heads, batches = dims.batches / dims.index_batches;
  const int64_t all = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto i = static_cast<int>(all % pairs), number = static_cast<int>(all / pairs);
  const int part = number % parts, block = number / parts % dims.blocks;
  const int kv = number / parts / dims.blocks % dims.key_heads;
  const int b = number / parts / dims.blocks / dims.key_heads;
  const int of = i / (pairs / 2), column = 2 * i % depth;
  const int key = block * dims.block + part * kKeys + 2 * i / depth % kKeys;
  if (key >= min((block + 1) * dims.block, dims.keys)) return;
  const int list = (b / batches * lists.heads + kv / heads) * dims.blocks + block;
  const int call = b % batches * heads + kv % heads;
  float2 sum{};
  for (int chunk = lists.chunk[list]; chunk < lists.chunk[list + 1]; ++chunk) {
    const int64_t at = (static_cast<int64_t>(chunk) * (batches * heads) + call) * parts + part;
    const float2 own = reinterpret_cast<const float2*>(sums)[at * pairs + i];
    sum = {sum.x + own.x, sum.y + own.y};
  }
  const float scale = of == 0 ? static_cast<float>(dims.scale) : 1;
  const Rows<T> to = (of == 0 ? x.dk : x.dv).at(b, kv);
  *reinterpret_cast<uint32_t*>(to.data + key * to.row + column) =
      mma::Operand<T>::pack(scale * sum.x, scale * sum.y);
}

/// Writes dq of the rows of a segment from their shares: a warp for 32 times 8 elements of a group.
template <class T, int depth>
__global__ void __launch_bounds__(kThreads)
    add_shares_kernel(const __grid_constant__ Backward<T> x,
                      const __grid_constant__ Segment segment, int heads, int calls,
                      const uint4* shares) {
  const Dims& dims = x.dims;
  const int parts = key_parts(dims), chunks = dims.group * (depth / 8);
  const int warps = (chunks + 31) / 32;
  const int64_t number = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int64_t group = number / warps, row = segment.first + group / calls;
  if (row >= segment.past) return;
  const auto call = static_cast<int>(group % calls);
  const int chunk = static_cast<int>(number % warps) * 32 + lane();
  const int64_t head = row / dims.rows % dims.index_heads, batches = calls / heads;
  const auto unit = static_cast<int>(head * heads + call % heads);
  const auto b = row / dims.rows / dims.index_heads * batches + call / heads;
  const int2 at = dims.place(unit, static_cast<int>(row % dims.rows), chunk / (depth / 8));
  const bool inside = at.x >= 0 && chunk < chunks;
  const int32_t* const index = dims.index + row * dims.entries;
  float sum[8] = {};
  for (int base = 0; base < dims.entries; base += 32) {
    const int entry = base + lane(), block = entry < dims.entries ? index[entry] : -1;
    bool first = __ffs(static_cast<int>(__match_any_sync(~0u, block))) - 1 == lane();
    for (int before = 0; before < base; ++before) first = first && index[before] != block;
    for (int part = 0; part < parts; ++part) {
      const bool has = first && block >= 0 && block < dims.blocks &&
                       static_cast<int64_t>(block) * dims.block + part * kKeys < dims.keys;
      const uint32_t written = __ballot_sync(~0u, has);
      const int count = min(32, dims.entries - base);
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        uint4 own{};
        if (inside && written >> i & 1) {
          own =
              __ldcs(shares + ((group * dims.entries + base + i) * parts + part) * chunks + chunk);
        }
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const float2 two = hopper::unpack(std::type_identity<T>{}, (&own.x)[word]);
          sum[2 * word] += two.x;
          sum[2 * word + 1] += two.y;
        }
      }
    }
  }
  if (!inside) return;
  T* const to = x.dq.data + b * x.dq.batch + at.y * x.dq.head + at.x * x.dq.row +
                chunk % (depth / 8) / 4 * 32 + lane() % 4 * 2;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    *reinterpret_cast<uint32_t*>(to + 8 * word) =
        mma::Operand<T>::pack(sum[2 * word], sum[2 * word + 1]);
  }
}

}  // namespace

template <class T>
void add_chunks(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                const float* sums) {
  const Dims& dims = call.dims;
  const int64_t blocks = static_cast<int64_t>(dims.batches) * dims.key_heads * dims.blocks *
                         key_parts(dims) * (kKeys * dims.depth / kThreads);
  launch_tiles(context, blocks, kThreads, 0,
               dims.depth == 64 ? add_chunks_kernel<T, 64> : add_chunks_kernel<T, 128>, call, lists,
               sums);
}

template <class T>
void add_shares(const KernelContext& context, const Backward<T>& call, const Lists& lists,
                const Segment& segment, const uint4* shares) {
  const Dims& dims = call.dims;
  const int heads = dims.key_heads / lists.heads;
  const int calls = dims.batches / dims.index_batches * heads;
  const int64_t warps =
      (segment.past - segment.first) * calls * ceil_div(int64_t{dims.group} * dims.depth / 8, 32);
  launch_tiles(context, ceil_div(warps, kThreads / 32), kThreads, 0,
               dims.depth == 64 ? add_shares_kernel<T, 64> : add_shares_kernel<T, 128>, call,
               segment, heads, calls, shares);
}

template void add_chunks(const KernelContext&, const Backward<__nv_bfloat16>&, const Lists&,
                         const float*);
template void add_chunks(const KernelContext&, const Backward<__half>&, const Lists&, const float*);
template void add_shares(const KernelContext&, const Backward<__nv_bfloat16>&, const Lists&,
                         const Segment&, const uint4*);
template void add_shares(const KernelContext&, const Backward<__half>&, const Lists&,
                         const Segment&, const uint4*);

}  // namespace sash::cuda::selected
