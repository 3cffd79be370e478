#include "../elementwise/compute.cuh"
#include "../hopper/tensor_map.h"
#include "block_sparse.h"
#include "block_wgmma.cuh"

/// y = a W' + bias and y = a W for blocks of 64 and 128, by wgmma. A block of threads computes
/// 64 columns of y for 256 tokens, as y' = W a': the blocks of a line are left operands, slices of
/// a right ones. Both come by TMA, one block after the other.
namespace sash::cuda::sparse {
namespace {

constexpr int kTokens = 256;

template <class T>
using Shared = Ring<Tile<T, 64, 64>, Tile<T, 64, kTokens>, 2>;

/// Writes the sums: a warp has 16 columns of y, of which a lane has two, and all tokens.
template <class T>
__device__ void write(const float (&sum)[128], unsigned char* shared, const T* bias, T* y,
                      int64_t y_width, int64_t left) {
  constexpr int kOutBytes =
      64 * 2 + 16;  // bytes of a token, 16 of them padding against bank conflicts
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const float low = bias ? static_cast<float>(bias[16 * warp + lane / 4]) : 0;
  const float high = bias ? static_cast<float>(bias[16 * warp + lane / 4 + 8]) : 0;
  const auto pack = [](float x, float y2) { return hopper::pack(std::type_identity<T>{}, x, y2); };
  const uint32_t to =
      hopper::shared_address(shared) +
      static_cast<uint32_t>((lane % 8 + lane / 16 * 8) * kOutBytes + 32 * warp + lane / 8 % 2 * 16);
  sync_multipliers();  // all products are done with the ring, whose memory this is
#pragma unroll
  for (int j = 0; j < 32; j += 2) {
    const float* const c = sum + 4 * j;
    hopper::store_matrices<true>(to + static_cast<uint32_t>(8 * j * kOutBytes),
                                 pack(c[0] + low, c[1] + low), pack(c[2] + high, c[3] + high),
                                 pack(c[4] + low, c[5] + low), pack(c[6] + high, c[7] + high));
  }
  sync_multipliers();
  const int chunk = thread % 8;
#pragma unroll 4
  for (int token = thread / 8; token < kTokens; token += 16) {
    if (token >= left) break;
    *reinterpret_cast<uint4*>(y + token * y_width + 8 * chunk) =
        *reinterpret_cast<const uint4*>(shared + token * kOutBytes + 16 * chunk);
  }
}

template <class T, int kBlock, bool kTransposed>
__global__ void __launch_bounds__(kRingThreads, 2)
    product_kernel(const __grid_constant__ MappedParams<T> p) {
#ifdef SASH_HOPPER
  constexpr int parts = kBlock / 64;  // of a block, along either side
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& ring = *reinterpret_cast<Shared<T>*>(memory);
  ring.init();
  const int part = static_cast<int>(blockIdx.x) % parts;
  const int64_t rest = blockIdx.x / parts, lines = p.lines.count;
  const int line = p.lines.order[rest % lines];
  const int64_t first_row = rest / lines * kTokens;
  const int begin = p.lines.starts[line], end = p.lines.starts[line + 1];
  typename Shared<T>::State at;
  if (threadIdx.x >= 128) {
    if (!hopper::elect_one()) return;
    for (int e = begin; e < end; ++e) {
      const int other = p.lines.other[e], position = p.lines.positions[e];
#pragma unroll
      for (int k = 0; k < parts; ++k) {
        hopper::Barrier& full = ring.acquire(at);
        copy_box(ring.left[at.stage()], 0, p.data,
                 position * kBlock + 64 * (kTransposed ? part : k), 64 * (kTransposed ? k : part),
                 full);
        copy_box(ring.right[at.stage()], 0, p.a, static_cast<int>(first_row),
                 other * kBlock + 64 * k, full);
        at.advance();
      }
    }
    return;
  }
  float sum[1][128];
  clear(sum);
  multiply_stages<64, !kTransposed, false>(ring, at, (end - begin) * parts, sum);
  const int64_t out = static_cast<int64_t>(line) * kBlock + 64 * part;
  write<T>(sum[0], memory, p.bias ? p.bias + out : nullptr, p.y + first_row * p.y_width + out,
           p.y_width, p.rows - first_row);
#endif
}

template <class T, int kBlock, bool kTransposed>
void launch(const KernelContext& context, const ProductCall& call) {
  const MappedParams<T> params(call, matrix_map(call.a, call.a.shape[1], kTokens, 64),
                               matrix_map(call.data, kBlock, 64, 64));
  launch_large_kernel(context, ceil_div(params.rows, kTokens) * params.lines.count * (kBlock / 64),
                      kRingThreads, sizeof(Shared<T>), product_kernel<T, kBlock, kTransposed>,
                      params);
}

}  // namespace

void multiply_wide_hopper(const KernelContext& context, const ProductCall& call) {
  dispatch_device_halves(call.y.dtype, "block_sparse_matmul", [&]<class T>(TypeTag<T>) {
    with_product<64, 128>(call, [&](auto block, auto transposed) {
      launch<T, block(), transposed()>(context, call);
    });
  });
}

}  // namespace sash::cuda::sparse
