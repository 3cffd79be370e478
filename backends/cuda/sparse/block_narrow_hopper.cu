#include "../elementwise/compute.cuh"
#include "../hopper/tensor_map.h"
#include "block_sparse.h"
#include "block_wgmma.cuh"

/// y = a W' + bias and y = a W for blocks of 16 and 32, by wgmma. A block of threads computes a
/// block line of y for 256 tokens: slices [256][block] of a are left operands, blocks of W right
/// ones. A stage of the ring is one block.
namespace sash::cuda::sparse {
namespace {

constexpr int kTokens = 256;

template <class T, int kBlock>
using Shared = Ring<Tile<T, kBlock, kTokens>, Tile<T, kBlock, kBlock>, kBlock == 32 ? 6 : 11>;

/// Writes the sums of four times 16 tokens, through the warp's part of shared memory, so that rows
/// leave in 16-byte words.
template <class T, int kBlock>
__device__ void write(const float (&sum)[4][kBlock / 2], unsigned char* shared, const T* bias, T* y,
                      int64_t y_width, int64_t left) {
  constexpr int out_bytes = 2 * kBlock + 16, chunks = kBlock / 8, rows = 32 / chunks;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  unsigned char* const mine = shared + warp * 64 * out_bytes;
  sync_multipliers();  // all products are done with the ring, whose memory this is
#pragma unroll
  for (int j = 0; j < kBlock / 8; ++j) {
    const int column = 8 * j + lane % 4 * 2;
    const float low = bias ? static_cast<float>(bias[column]) : 0;
    const float high = bias ? static_cast<float>(bias[column + 1]) : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* const c = &sum[i / 2][4 * j + i % 2 * 2];
      *reinterpret_cast<uint32_t*>(mine + (8 * i + lane / 4) * out_bytes + 2 * column) =
          hopper::pack(std::type_identity<T>{}, c[0] + low, c[1] + high);
    }
  }
  __syncwarp();
#pragma unroll
  for (int first = 0; first < 64; first += rows) {
    const int row = first + lane / chunks, chunk = lane % chunks;
    const int token = row / 16 * 64 + 16 * warp + row % 16;
    if (token < left) {
      *reinterpret_cast<uint4*>(y + token * y_width + 8 * chunk) =
          *reinterpret_cast<const uint4*>(mine + row * out_bytes + 16 * chunk);
    }
  }
}

template <class T, int kBlock, bool kTransposed>
__global__ void __launch_bounds__(kRingThreads, 2)
    narrow_kernel(const __grid_constant__ MappedParams<T> p) {
#ifdef SASH_HOPPER
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& ring = *reinterpret_cast<Shared<T, kBlock>*>(memory);
  ring.init();
  const int64_t lines = p.lines.count;
  const int line = p.lines.order[blockIdx.x % lines];
  const int64_t first_row = blockIdx.x / lines * kTokens;
  const int begin = p.lines.starts[line], end = p.lines.starts[line + 1];
  typename Shared<T, kBlock>::State at;
  if (threadIdx.x >= 128) {
    if (!hopper::elect_one()) return;
    for (int e = begin; e < end; ++e) {
      const int other = p.lines.other[e], position = p.lines.positions[e];
      hopper::Barrier& full = ring.acquire(at);
      copy_box(ring.left[at.stage()], 0, p.a, static_cast<int>(first_row), other * kBlock, full);
      copy_box(ring.right[at.stage()], 0, p.data, position * kBlock, 0, full);
      at.advance();
    }
    return;
  }
  float sum[4][kBlock / 2];
  clear(sum);
  multiply_stages<kBlock, false, !kTransposed>(ring, at, end - begin, sum);
  const int64_t out = static_cast<int64_t>(line) * kBlock;
  write<T, kBlock>(sum, memory, p.bias ? p.bias + out : nullptr, p.y + first_row * p.y_width + out,
                   p.y_width, p.rows - first_row);
#endif
}

template <class T, int kBlock, bool kTransposed>
void launch(const KernelContext& context, const ProductCall& call) {
  const MappedParams<T> params(call, matrix_map(call.a, call.a.shape[1], kTokens, kBlock),
                               matrix_map(call.data, kBlock, kBlock, kBlock));
  launch_large_kernel(context, ceil_div(params.rows, kTokens) * params.lines.count, kRingThreads,
                      sizeof(Shared<T, kBlock>), narrow_kernel<T, kBlock, kTransposed>, params);
}

}  // namespace

void multiply_narrow_hopper(const KernelContext& context, const ProductCall& call) {
  dispatch_device_halves(call.y.dtype, "block_sparse_matmul", [&]<class T>(TypeTag<T>) {
    with_product<16, 32>(call, [&](auto block, auto transposed) {
      launch<T, block(), transposed()>(context, call);
    });
  });
}

}  // namespace sash::cuda::sparse
