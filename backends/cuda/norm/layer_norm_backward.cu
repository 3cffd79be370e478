#include "../../../ops/kernels/norm.h"

#include "../elementwise/dropout.cuh"
#include "rows.cuh"

namespace sash::cuda {
namespace {

/// dx = dsum + rstd (h - mean(h) - z mean(h z)) with z = (x - mean) rstd and h = g weight, and
/// dbranch = dropout(dx). dsum may be null (0), and so may dx and dbranch.
template <class T>
struct InputGradient {
  using A = compute_t<T>;
  const T* x;
  const T* weight;
  const A* mean;
  const A* rstd;
  const T* g;
  const T* dsum;
  T* dx;
  T* dbranch;
  DropoutFactors<A> dropout;

  /// Of a row that is read twice.
  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const A m = mean[row], r = rstd[row];
    A sum_h = 0, sum_hz = 0;
    over_row<Team, V>(n, [&](int, int64_t at) {
      add_up(read<V>(x + row * n + at), read<V>(g + row * n + at), at, m, r, sum_h, sum_hz);
    });
    const A mean_h = Team::reduce(sum_h, Plus{}) / static_cast<A>(n);
    const A mean_hz = Team::reduce(sum_hz, Plus{}) / static_cast<A>(n);
    over_row<Team, V>(n, [&](int, int64_t at) {
      finish(read<V>(x + row * n + at), read<V>(g + row * n + at), row * n + at, at, m, r, mean_h,
             mean_hz);
    });
  }

  /// Adds the vector's part of the sums of h and h z.
  template <int V>
  __device__ void add_up(const Vector<A, V>& v, const Vector<A, V>& gv, int64_t at, A m, A r,
                         A& sum_h, A& sum_hz) const {
    const auto w = read_or<V>(weight, at, A(1));
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A h = gv.element[i] * w.element[i];
      sum_h += h;
      sum_hz += h * ((v.element[i] - m) * r);
    }
  }

  /// Writes the gradients of the elements from `first` on, which are in the columns from `at` on.
  template <int V>
  __device__ void finish(const Vector<A, V>& v, const Vector<A, V>& gv, int64_t first, int64_t at,
                         A m, A r, A mean_h, A mean_hz) const {
    const auto w = read_or<V>(weight, at, A(1));
    auto out = read_or<V>(dsum, first, A(0));
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A z = (v.element[i] - m) * r;
      out.element[i] += (gv.element[i] * w.element[i] - mean_h - z * mean_hz) * r;
    }
    write<V>(dx + first, out);
    if (!dbranch) return;
    if (dropout.drops()) {
      const auto factor = dropout.template at<V>(first);
#pragma unroll
      for (int i = 0; i < V; ++i) out.element[i] *= factor.element[i];
    }
    write<V>(dbranch + first, out);
  }
};

// The parameters' gradients are first summed over chunks of rows.
constexpr int64_t kChunks = 256, kShortestChunk = 32;

/// partial [chunks, 2, n] of one chunk: the warps' sums `weight` and `bias` of kWarp V columns,
/// which start at `begin`.
template <int V, class A>
__device__ void add_warps(const A (&weight)[V], const A (&bias)[V], A* partial, int64_t begin,
                          int64_t n) {
  __shared__ A sums[2][kWarps][V][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  __syncthreads();  // the previous call's sums were read
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sums[0][warp][i][lane] = weight[i];
    sums[1][warp][i][lane] = bias[i];
  }
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < 2 * kWarp * V; s += kThreads) {
    const int which = s / (kWarp * V), column = s % (kWarp * V);
    A total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[which][w][column % V][column / V];
    if (begin + column < n) partial[which * n + begin + column] = total;
  }
}

/// All gradients of a chunk of rows of at most K kWarp V elements in one pass: a warp holds a row
/// of x and of g, and its part of the parameters' gradients.
template <int V, int K, class T>
__global__ void __launch_bounds__(kThreads)
    backward_rows(const __grid_constant__ InputGradient<T> f, compute_t<T>* partial, int64_t rows,
                  int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t begin = blockIdx.x * chunk, end = min(rows, begin + chunk);
  A weight[K][V] = {}, bias[K][V] = {};
  const auto over_vectors = [&](auto&& body) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int at = (k * kWarp + lane) * V;
      if (at < n) body(k, at);
    }
  };
  for (int64_t row = begin + warp; row < end; row += kWarps) {
    Vector<T, V> x[K], g[K];
    over_vectors([&](int k, int at) {
      x[k] = *reinterpret_cast<const Vector<T, V>*>(f.x + row * n + at);
      g[k] = *reinterpret_cast<const Vector<T, V>*>(f.g + row * n + at);
    });
    const A m = f.mean[row], r = f.rstd[row];
    A sum_h = 0, sum_hz = 0;
    over_vectors([&](int k, int at) {
      const auto v = widened(x[k]), gv = widened(g[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        weight[k][i] += gv.element[i] * ((v.element[i] - m) * r);
        bias[k][i] += gv.element[i];
      }
      f.add_up(v, gv, at, m, r, sum_h, sum_hz);
    });
    if (!f.dx) continue;
    const A mean_h = reduce_warp(sum_h, Plus{}) / static_cast<A>(n);
    const A mean_hz = reduce_warp(sum_hz, Plus{}) / static_cast<A>(n);
    over_vectors([&](int k, int at) {
      f.finish(widened(x[k]), widened(g[k]), row * n + at, at, m, r, mean_h, mean_hz);
    });
  }
  if (!partial) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    add_warps<V>(weight[k], bias[k], partial + blockIdx.x * 2 * n, int64_t{k} * kWarp * V, n);
  }
}

/// The parameters' gradients alone. A block sums kWarp V columns of one chunk; its warps take the
/// rows in turn.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    sum_chunks(const T* x, const compute_t<T>* mean, const compute_t<T>* rstd, const T* g,
               compute_t<T>* partial, int64_t rows, int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = int64_t{blockIdx.x} * kWarp * V, at = first + lane * V;
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
  add_warps<V>(weight, bias, partial + blockIdx.y * 2 * n, first, n);
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
#pragma unroll 16
    for (int64_t c = warp; c < chunks; c += kWarps) total += partial[(2 * c + blockIdx.y) * n + at];
  }
  sums[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || at >= n) return;
  for (int w = 1; w < kWarps; ++w) total += sums[w][lane];
  out[at] = narrow<T>(total);
}

/// Launches of one call's kernels. `f.weight` and so on have `rows` rows of n elements.
template <class T>
class BackwardCall {
  using A = compute_t<T>;
  static constexpr int kVector = 16 / sizeof(T);

 public:
  BackwardCall(const KernelContext& context, const InputGradient<T>& f, int64_t rows, int64_t n)
      : context_(context),
        stream_(static_cast<cudaStream_t>(context.stream.handle)),
        f_(f),
        rows_(rows),
        n_(n),
        chunk_(std::max(kShortestChunk, (rows + kChunks - 1) / kChunks)),
        chunks_((rows + chunk_ - 1) / chunk_) {}

  void run(T* dweight, T* dbias) const {
    const bool parameters = (dweight || dbias) && n_ > 0;
    const Workspace scratch(context_,
                            parameters ? chunks_ * 2 * n_ * static_cast<int64_t>(sizeof(A)) : 0);
    A* const partial = parameters ? scratch.template ptr<A>() : nullptr;
    const CardGuard guard(context_.device.index);
    if (rows_ > 0 && n_ > 0) {
      const bool vectors =
          rows_take_vectors<T>(n_, {f_.x, f_.weight, f_.g, f_.dsum, f_.dx, f_.dbranch});
      if (vectors && n_ <= kLongestHeld) {
        held(partial);
      } else {
        twice(vectors, partial);
      }
    }
    if (!parameters) return;
    add_chunks<<<dim3(blocks(kWarp), 2), kThreads, 0, stream_>>>(partial, chunks_, n_, dweight,
                                                                 dbias);
    SASH_CUDA_CHECK(cudaGetLastError());
  }

 private:
  unsigned blocks(int64_t columns) const {
    return static_cast<unsigned>((n_ + columns - 1) / columns);
  }

  void held(A* partial) const {
    const auto launch = [&]<int K>(std::integral_constant<int, K>) {
      backward_rows<kVector, K><<<static_cast<unsigned>(chunks_), kThreads, 0, stream_>>>(
          f_, partial, rows_, n_, chunk_);
      SASH_CUDA_CHECK(cudaGetLastError());
    };
    constexpr int most = kHeld / kVector;
    if constexpr (sizeof(T) < 8) {
      if (n_ <= kLongestHeld / 4) return launch(std::integral_constant<int, most / 4>{});
      if (n_ <= kLongestHeld / 2) return launch(std::integral_constant<int, most / 2>{});
      if (n_ <= kLongestHeld / 4 * 3) return launch(std::integral_constant<int, most * 3 / 4>{});
    }
    launch(std::integral_constant<int, most>{});
  }

  /// Long rows, and rows that allow no vectors: x and g are read twice.
  void twice(bool vectors, A* partial) const {
    if (f_.dx) {
      over_rows<T>(context_, f_, rows_, n_, {f_.x, f_.weight, f_.g, f_.dsum, f_.dx, f_.dbranch});
    }
    if (!partial) return;
    const auto launch = [&]<int V>(std::integral_constant<int, V>) {
      const dim3 grid(blocks(kWarp * V), static_cast<unsigned>(chunks_));
      sum_chunks<V><<<grid, kThreads, 0, stream_>>>(f_.x, f_.mean, f_.rstd, f_.g, partial, rows_,
                                                    n_, chunk_);
      SASH_CUDA_CHECK(cudaGetLastError());
    };
    vectors ? launch(std::integral_constant<int, kVector>{})
            : launch(std::integral_constant<int, 1>{});
  }

  const KernelContext& context_;
  cudaStream_t stream_;
  InputGradient<T> f_;
  int64_t rows_, n_, chunk_, chunks_;
};

void dropout_add_layer_norm_backward(KernelContext& context, const TensorView& sum,
                                     const TensorView& weight, const TensorView& mean,
                                     const TensorView& rstd, const TensorView& g,
                                     const TensorView& dsum, const kernels::BranchDropout& dropout,
                                     const TensorView& dresidual, const TensorView& dbranch,
                                     const TensorView& dweight, const TensorView& dbias) {
  dispatch_any_floating(sum.dtype, "layer_norm", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    const InputGradient<T> f{
        sum.ptr<T>(),       weight.ptr<T>(),  mean.ptr<A>(),
        rstd.ptr<A>(),      g.ptr<T>(),       dsum.ptr<T>(),
        dresidual.ptr<T>(), dbranch.ptr<T>(), DropoutFactors<A>(dropout.p, dropout.state)};
    const BackwardCall<T> call(context, f, sum.shape[0], sum.shape[1]);
    call.run(dweight.ptr<T>(), dbias.ptr<T>());
  });
}

void layer_norm_backward(KernelContext& context, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& rstd, const TensorView& g,
                         const TensorView& dx, const TensorView& dweight, const TensorView& dbias) {
  dropout_add_layer_norm_backward(context, x, weight, mean, rstd, g, {}, {}, dx, {}, dweight,
                                  dbias);
}

}  // namespace

void register_layer_norm_backward() {
  kernels::layer_norm_backward.set(DeviceType::cuda, layer_norm_backward);
  kernels::dropout_add_layer_norm_backward.set(DeviceType::cuda, dropout_add_layer_norm_backward);
}

}  // namespace sash::cuda
