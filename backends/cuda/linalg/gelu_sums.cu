#include "gelu_sums.h"

#include "../elementwise/gelu.cuh"
#include "../norm/rows.cuh"

namespace sash::cuda {
namespace {

constexpr int64_t kBlocks = 768, kShortestChunk = 64;

/// A block takes kWarp V columns of one chunk of rows, its warps the rows in turn.
/// partial [chunks, n]: the chunk's sums.
template <class P, int V, class T>
__global__ void __launch_bounds__(kThreads)
    multiply_and_sum(const T* z, T* d, compute_t<T>* partial, int64_t rows, int64_t n,
                     int64_t chunk) {
  using A = compute_t<T>;
  __shared__ A sums[kWarps][V][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = int64_t{blockIdx.x} * kWarp * V, at = first + lane * V;
  const int64_t begin = blockIdx.y * chunk, end = min(rows, begin + chunk);
  A sum[V] = {};
  if (at < n) {
    constexpr int kAhead = 4;  // rows that are read before one is written
    for (int64_t row = begin + warp; row < end; row += kAhead * kWarps) {
      Vector<T, V> x[kAhead], g[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int64_t from = (row + i * kWarps) * n + at;
        if (row + i * kWarps >= end) break;
        x[i] = *reinterpret_cast<const Vector<T, V>*>(z + from);
        g[i] = *reinterpret_cast<const Vector<T, V>*>(d + from);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (row + i * kWarps >= end) break;
        const auto wide = widened(x[i]);
        auto out = widened(g[i]);
#pragma unroll
        for (int k = 0; k < V; ++k) {
          out.element[k] = GeluGradient<P>{}(wide.element[k], out.element[k]);
          sum[k] += out.element[k];
        }
        write<V>(d + (row + i * kWarps) * n + at, out);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < V; ++k) sums[warp][k][lane] = sum[k];
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < kWarp * V; column += kThreads) {
    A total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w][column % V][column / V];
    if (first + column < n) partial[blockIdx.y * n + first + column] = total;
  }
}

/// sums = those of the chunks, which the warps take in turn.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_chunks(const compute_t<T>* partial, int64_t chunks, int64_t n, T* sums) {
  using A = compute_t<T>;
  __shared__ A parts[kWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t at = int64_t{blockIdx.x} * kWarp + lane;
  A total = 0;
  if (at < n) {
#pragma unroll 16
    for (int64_t c = warp; c < chunks; c += kWarps) total += partial[c * n + at];
  }
  parts[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || at >= n) return;
  for (int w = 1; w < kWarps; ++w) total += parts[w][lane];
  sums[at] = narrow<T>(total);
}

template <class P, class T>
void run(const KernelContext& context, const TensorView& z, const TensorView& d,
         const TensorView& sums) {
  using A = compute_t<T>;
  const int64_t rows = d.shape[0], n = d.shape[1];
  if (n == 0) return;
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto launch = [&]<int V>(std::integral_constant<int, V>) {
    const int64_t groups = (n + kWarp * V - 1) / (kWarp * V);
    const int64_t wanted = std::clamp<int64_t>(kBlocks / groups, 1, rows / kShortestChunk + 1);
    const int64_t chunk = (rows + wanted - 1) / wanted;
    const int64_t chunks = rows == 0 ? 0 : (rows + chunk - 1) / chunk;
    const Workspace scratch(context, chunks * n * static_cast<int64_t>(sizeof(A)));
    const CardGuard guard(context.device.index);
    if (chunks > 0) {
      const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(chunks));
      multiply_and_sum<P, V>
          <<<grid, kThreads, 0, stream>>>(z.ptr<T>(), d.ptr<T>(), scratch.ptr<A>(), rows, n, chunk);
      SASH_CUDA_CHECK(cudaGetLastError());
    }
    add_chunks<<<static_cast<unsigned>((n + kWarp - 1) / kWarp), kThreads, 0, stream>>>(
        scratch.ptr<A>(), chunks, n, sums.ptr<T>());
    SASH_CUDA_CHECK(cudaGetLastError());
  };
  if (rows_take_vectors<T>(n, {z.data, d.data})) {
    launch(std::integral_constant<int, 16 / sizeof(T)>{});
  } else {
    launch(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void gelu_gradient_and_sums(KernelContext& context, const TensorView& z, const TensorView& d,
                            const TensorView& sums, bool tanh) {
  dispatch_any_floating(d.dtype, "gelu", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    tanh ? run<GeluByTanh, T>(context, z, d, sums) : run<ExactGelu, T>(context, z, d, sums);
  });
}

}  // namespace sash::cuda
