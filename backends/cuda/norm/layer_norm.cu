#include "../../../ops/kernels/norm.h"

#include <cmath>

#include "rows.cuh"

namespace sash::cuda {
namespace {

/// V elements of a parameter, or V times `rest` without one.
template <int V, class T>
__device__ Vector<compute_t<T>, V> read_or(const T* parameter, int64_t at, compute_t<T> rest) {
  if (parameter) return read<V>(parameter + at);
  Vector<compute_t<T>, V> all;
#pragma unroll
  for (auto& e : all.element) e = rest;
  return all;
}

template <class T>
struct Forward {
  using A = compute_t<T>;
  const T* x;
  const T* weight;
  const T* bias;
  T* y;
  A* mean;
  A* rstd;
  A eps;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const Row<Team, V, T> values(x + row * n, n);
    const A m = mean_of<Team, V>(values, n);
    const A r = rstd_of<Team, V>(values, m, n);
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = values(k, at);
      const auto w = read_or<V>(weight, at, A(1)), b = read_or<V>(bias, at, A(0));
#pragma unroll
      for (int i = 0; i < V; ++i) {
        out.element[i] = (out.element[i] - m) * r * w.element[i] + b.element[i];
      }
      write<V>(y + row * n + at, out);
    });
    if (Team::rank() != 0) return;
    mean[row] = m;
    rstd[row] = r;
  }

 private:
  template <class Team, int V>
  __device__ A mean_of(const Row<Team, V, T>& values, int64_t n) const {
    A sum = 0;
    over_row<Team, V>(n, [&](int k, int64_t at) {
      const auto v = values(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += v.element[i];
    });
    return Team::reduce(sum, Plus{}) / static_cast<A>(n);
  }

  template <class Team, int V>
  __device__ A rstd_of(const Row<Team, V, T>& values, A m, int64_t n) const {
    A squares = 0;
    over_row<Team, V>(n, [&](int k, int64_t at) {
      const auto v = values(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) squares += (v.element[i] - m) * (v.element[i] - m);
    });
    return 1 / std::sqrt(Team::reduce(squares, Plus{}) / static_cast<A>(n) + eps);
  }
};

/// dx = rstd (h - mean(h) - z mean(h z)) with z = (x - mean) rstd and h = g weight.
template <class T>
struct InputGradient {
  using A = compute_t<T>;
  const T* x;
  const T* weight;
  const A* mean;
  const A* rstd;
  const T* g;
  T* dx;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const Row<Team, V, T> values(x + row * n, n), grad(g + row * n, n);
    const A m = mean[row], r = rstd[row];
    A sum_h = 0, sum_hz = 0;
    over_row<Team, V>(n, [&](int k, int64_t at) {
      const auto v = values(k, at), gv = grad(k, at), w = read_or<V>(weight, at, A(1));
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A h = gv.element[i] * w.element[i];
        sum_h += h;
        sum_hz += h * ((v.element[i] - m) * r);
      }
    });
    const A mean_h = Team::reduce(sum_h, Plus{}) / static_cast<A>(n);
    const A mean_hz = Team::reduce(sum_hz, Plus{}) / static_cast<A>(n);
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = values(k, at);
      const auto gv = grad(k, at), w = read_or<V>(weight, at, A(1));
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A z = (out.element[i] - m) * r;
        out.element[i] = (gv.element[i] * w.element[i] - mean_h - z * mean_hz) * r;
      }
      write<V>(dx + row * n + at, out);
    });
  }
};

// The parameters' gradients are first summed over chunks of rows. A block sums kWarp V columns of
// one chunk; its warps take the rows in turn.
constexpr int64_t kChunks = 256, kShortestChunk = 32;

/// partial [chunks, 2, n]: per chunk the sums over its rows of g z, then of g.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    sum_chunks(const T* x, const compute_t<T>* mean, const compute_t<T>* rstd, const T* g,
               compute_t<T>* partial, int64_t rows, int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  __shared__ A sums[2][kWarps][V][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kWarp + lane) * V;
  const int64_t begin = blockIdx.y * chunk, end = min(rows, begin + chunk);
  A weight[V] = {}, bias[V] = {};
  if (at < n) {
#pragma unroll 4
    for (int64_t row = begin + warp; row < end; row += kWarps) {
      const auto v = read<V>(x + row * n + at), gv = read<V>(g + row * n + at);
      const A m = mean[row], r = rstd[row];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        weight[i] += gv.element[i] * ((v.element[i] - m) * r);
        bias[i] += gv.element[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[0][warp][i][lane] = weight[i];
    sums[1][warp][i][lane] = bias[i];
  }
  __syncthreads();
  // Each thread adds the warps' parts of some of the 2 kWarp V sums.
  for (int s = static_cast<int>(threadIdx.x); s < 2 * kWarp * V; s += kThreads) {
    const int which = s / (kWarp * V), column = s % (kWarp * V);
    const int64_t to = static_cast<int64_t>(blockIdx.x) * kWarp * V + column;
    A total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[which][w][column % V][column / V];
    if (to < n) partial[(blockIdx.y * int64_t{2} + which) * n + to] = total;
  }
}

/// dweight (blockIdx.y = 0) or dbias = the sum of the chunks. Each warp adds every kWarps-th chunk.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_chunks(const compute_t<T>* partial, int64_t chunks, int64_t n, T* dweight, T* dbias) {
  using A = compute_t<T>;
  __shared__ A sums[kWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  T* const out = blockIdx.y == 0 ? dweight : dbias;
  if (!out) return;
  A total = 0;
  if (at < n) {
#pragma unroll 8
    for (int64_t c = warp; c < chunks; c += kWarps) total += partial[(2 * c + blockIdx.y) * n + at];
  }
  sums[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || at >= n) return;
  for (int w = 1; w < kWarps; ++w) total += sums[w][lane];
  out[at] = narrow<T>(total);
}

template <class T>
void parameter_gradients(const KernelContext& context, const TensorView& x, const TensorView& mean,
                         const TensorView& rstd, const TensorView& g, T* dweight, T* dbias) {
  using A = compute_t<T>;
  const int64_t rows = x.shape[0], n = x.shape[1];
  if (n == 0) return;
  const int64_t chunk = std::max(kShortestChunk, (rows + kChunks - 1) / kChunks);
  const int64_t chunks = (rows + chunk - 1) / chunk;
  const Workspace scratch(context, chunks * 2 * n * static_cast<int64_t>(sizeof(A)));
  const CardGuard guard(context.device.index);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto blocks = [n](int64_t columns) {
    return static_cast<unsigned>((n + columns - 1) / columns);
  };
  const auto launch = [&]<int V>(std::integral_constant<int, V>) {
    const dim3 grid(blocks(kWarp * V), static_cast<unsigned>(chunks));
    sum_chunks<V><<<grid, kThreads, 0, stream>>>(x.ptr<T>(), mean.ptr<A>(), rstd.ptr<A>(),
                                                 g.ptr<T>(), scratch.ptr<A>(), rows, n, chunk);
    SASH_CUDA_CHECK(cudaGetLastError());
  };
  if (chunks > 0 && rows_take_vectors<T>(n, {x.data, g.data})) {
    launch(std::integral_constant<int, 16 / sizeof(T)>{});
  } else if (chunks > 0) {
    launch(std::integral_constant<int, 1>{});
  }
  add_chunks<<<dim3(blocks(kWarp), 2), kThreads, 0, stream>>>(scratch.ptr<A>(), chunks, n, dweight,
                                                              dbias);
  SASH_CUDA_CHECK(cudaGetLastError());
}

void layer_norm_forward(KernelContext& context, const TensorView& x, const TensorView& weight,
                        const TensorView& bias, const TensorView& y, const TensorView& mean,
                        const TensorView& rstd, double eps) {
  dispatch_any_floating(x.dtype, "layer_norm", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    const Forward<T> forward{x.ptr<T>(),    weight.ptr<T>(), bias.ptr<T>(),      y.ptr<T>(),
                             mean.ptr<A>(), rstd.ptr<A>(),   static_cast<A>(eps)};
    over_rows<T>(context, forward, x.shape[0], x.shape[1],
                 {x.data, weight.data, bias.data, y.data});
  });
}

void layer_norm_backward(KernelContext& context, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& rstd, const TensorView& g,
                         const TensorView& dx, const TensorView& dweight, const TensorView& dbias) {
  dispatch_any_floating(x.dtype, "layer_norm", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    if (dx.data) {
      const InputGradient<T> gradient{x.ptr<T>(),    weight.ptr<T>(), mean.ptr<A>(),
                                      rstd.ptr<A>(), g.ptr<T>(),      dx.ptr<T>()};
      over_rows<T>(context, gradient, x.shape[0], x.shape[1],
                   {x.data, weight.data, g.data, dx.data});
    }
    if (!dweight.data && !dbias.data) return;
    parameter_gradients(context, x, mean, rstd, g, dweight.ptr<T>(), dbias.ptr<T>());
  });
}

}  // namespace

void register_layer_norm() {
  kernels::layer_norm_forward.set(DeviceType::cuda, layer_norm_forward);
  kernels::layer_norm_backward.set(DeviceType::cuda, layer_norm_backward);
}

}  // namespace sash::cuda
