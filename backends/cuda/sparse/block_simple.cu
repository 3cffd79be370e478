#include "block_sparse.h"

#include "../elementwise/compute.cuh"

/// Block-sparse products of float32 and float64, without tensor cores: full precision.
namespace sash::cuda::sparse {
namespace {

constexpr int kSimpleThreads = 256, kSimpleDepth = 16;

template <class T>
struct alignas(16) Four {
  T element[4];
};

/// A tile of y, 128 tokens by up to 64 columns of a block line; a thread has kRows x 4 of it.
template <class T, int kBlock, bool kTransposed>
__global__ void __launch_bounds__(kSimpleThreads)
    simple_product_kernel(const __grid_constant__ ProductParams<T> p) {
  constexpr int tile_rows = 128, columns = kBlock < 64 ? kBlock : 64, across = columns / 4;
  constexpr int kRows = columns / 8, parts = kBlock / columns;
  __shared__ __align__(16) T left[kSimpleDepth][tile_rows + 4];
  __shared__ __align__(16) T right[kSimpleDepth][columns + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int part = static_cast<int>(blockIdx.x % parts);
  const int64_t rest = blockIdx.x / parts, lines = p.lines.count;
  const int line = p.lines.order[rest % lines];
  const int64_t first_row = rest / lines * tile_rows;
  const int my_row = thread / across * kRows, my_column = thread % across * 4;
  T sum[kRows][4] = {};
  for (int e = p.lines.starts[line]; e < p.lines.starts[line + 1]; ++e) {
    const int64_t a_column = int64_t{p.lines.other[e]} * kBlock;
    const T* const block = p.data + int64_t{p.lines.positions[e]} * kBlock * kBlock;
    for (int k = 0; k < kBlock; k += kSimpleDepth) {
      {
        const int row = thread / 2, depth = thread % 2 * 8;
        const bool inside = first_row + row < p.rows;
        const T* const from = p.a + (first_row + row) * p.a_width + a_column + k + depth;
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
          const auto four = inside ? *reinterpret_cast<const Four<T>*>(from + i) : Four<T>{};
#pragma unroll
          for (int n = 0; n < 4; ++n) left[depth + i + n][row] = four.element[n];
        }
      }
      if constexpr (kTransposed) {
        const int column = thread / 4, depth = thread % 4 * 4;
        if (column < columns) {
          const auto four = *reinterpret_cast<const Four<T>*>(
              block + (part * columns + column) * kBlock + k + depth);
#pragma unroll
          for (int n = 0; n < 4; ++n) right[depth + n][column] = four.element[n];
        }
      } else {
        const int depth = thread / across;
        if (depth < kSimpleDepth) {
          *reinterpret_cast<Four<T>*>(&right[depth][my_column]) = *reinterpret_cast<const Four<T>*>(
              block + (k + depth) * kBlock + part * columns + my_column);
        }
      }
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kSimpleDepth; ++d) {
        const auto b = *reinterpret_cast<const Four<T>*>(&right[d][my_column]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const T a = left[d][my_row + i];
#pragma unroll
          for (int n = 0; n < 4; ++n) sum[i][n] += a * b.element[n];
        }
      }
      __syncthreads();
    }
  }
  const int64_t out = int64_t{line} * kBlock + part * columns + my_column;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (first_row + my_row + i >= p.rows) break;
    Four<T> four;
#pragma unroll
    for (int n = 0; n < 4; ++n) four.element[n] = sum[i][n] + (p.bias ? p.bias[out + n] : T(0));
    *reinterpret_cast<Four<T>*>(p.y + (first_row + my_row + i) * p.y_width + out) = four;
  }
}

template <class T>
struct Sampled {
  const T* a;
  const T* b;
  T* data;
  const kernels::BlockGroup* groups;
  const int32_t* columns;
  const int32_t* positions;
  int64_t tokens, a_width, b_width;
};

/// A tile of a block of a' b, up to 64 x 64: over all tokens. Block (group, member, tile).
template <class T, int kBlock>
__global__ void __launch_bounds__(kSimpleThreads)
    simple_sampled_kernel(const __grid_constant__ Sampled<T> p) {
  constexpr int size = kBlock < 64 ? kBlock : 64, each = size / 16, tiles = kBlock / size;
  __shared__ T left[kSimpleDepth][size], right[kSimpleDepth][size];
  const kernels::BlockGroup group = p.groups[blockIdx.x];
  if (static_cast<int>(blockIdx.y) >= group.count) return;
  const int e = group.first + static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z) / tiles * size;
  const int column = static_cast<int>(blockIdx.z) % tiles * size;
  const T* const a = p.a + int64_t{group.row} * kBlock + row;
  const T* const b = p.b + int64_t{p.columns[e]} * kBlock + column;
  const int thread = static_cast<int>(threadIdx.x);
  const int my_row = thread / 16 * each, my_column = thread % 16 * each;
  T sum[each][each] = {};
  for (int64_t token = 0; token < p.tokens; token += kSimpleDepth) {
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int depth = (thread + i * kSimpleThreads) / size;
      const int at = (thread + i * kSimpleThreads) % size;
      const bool inside = token + depth < p.tokens;
      left[depth][at] = inside ? a[(token + depth) * p.a_width + at] : T(0);
      right[depth][at] = inside ? b[(token + depth) * p.b_width + at] : T(0);
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kSimpleDepth; ++d) {
#pragma unroll
      for (int i = 0; i < each; ++i) {
#pragma unroll
        for (int j = 0; j < each; ++j) sum[i][j] += left[d][my_row + i] * right[d][my_column + j];
      }
    }
    __syncthreads();
  }
  T* const to = p.data + int64_t{p.positions[e]} * kBlock * kBlock + row * kBlock + column;
#pragma unroll
  for (int i = 0; i < each; ++i) {
#pragma unroll
    for (int j = 0; j < each; ++j) to[(my_row + i) * kBlock + my_column + j] = sum[i][j];
  }
}

template <class T, int kBlock, bool kTransposed>
void launch(const KernelContext& context, const ProductCall& call) {
  const ProductParams<T> p(call);
  constexpr int columns = kBlock < 64 ? kBlock : 64;
  launch_kernel(context, ceil_div(p.rows, 128) * p.lines.count * (kBlock / columns), kSimpleThreads,
                0, simple_product_kernel<T, kBlock, kTransposed>, p);
}

}  // namespace

void multiply_simple(const KernelContext& context, const ProductCall& call) {
  dispatch_floating(call.y.dtype, "block_sparse_matmul", [&]<class T>(TypeTag<T>) {
    with_product<16, 32, 64, 128>(call, [&](auto block, auto transposed) {
      launch<T, block(), transposed()>(context, call);
    });
  });
}

void sample_simple(const KernelContext& context, View a, View b,
                   const kernels::BlockPatternView& pattern, View data) {
  dispatch_floating(data.dtype, "sampled_matmul", [&]<class T>(TypeTag<T>) {
    const Sampled<T> sampled{.a = a.ptr<const T>(),
                             .b = b.ptr<const T>(),
                             .data = data.ptr<T>(),
                             .groups = pattern.groups,
                             .columns = pattern.rows.other,
                             .positions = pattern.rows.positions,
                             .tokens = a.shape[0],
                             .a_width = a.shape[1],
                             .b_width = b.shape[1]};
    with_block(pattern.block, [&](auto block) {
      constexpr unsigned group = static_cast<unsigned>(kernels::blocks_per_group(block()));
      constexpr unsigned tiles = block() < 64 ? 1 : (block() / 64) * (block() / 64);
      const dim3 grid(block_count(pattern.group_count), group, tiles);
      launch_kernel(context, grid, kSimpleThreads, 0, simple_sampled_kernel<T, block()>, sampled);
    });
  });
}

}  // namespace sash::cuda::sparse
