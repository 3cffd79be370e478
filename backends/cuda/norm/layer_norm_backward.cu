#include "../../../ops/kernels/norm.h"

#include "../elementwise/dropout.cuh"
#include "column_sums.cuh"
#include "rows_ahead.cuh"

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

  template <int V>
  struct Terms {
    Vector<A, V> z, h;
  };

  /// Of a row that is read twice.
  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const A m = mean[row], r = rstd[row];
    const auto terms_at = [&](int64_t at) {
      const int64_t first = row * n + at;
      return terms(read<V>(x + first), read<V>(g + first), weights<V>(at), m, r);
    };
    A sums[2] = {};
    over_row<Team, V>(n, [&](int, int64_t at) { add_up(terms_at(at), sums); });
    const A mean_h = Team::reduce(sums[0], Plus{}) / static_cast<A>(n);
    const A mean_hz = Team::reduce(sums[1], Plus{}) / static_cast<A>(n);
    over_row<Team, V>(n, [&](int, int64_t at) {
      const int64_t first = row * n + at;
      finish(terms_at(at), read_or<V>(dsum, first, A(0)), first, r, mean_h, mean_hz);
    });
  }

  template <int V>
  __device__ Vector<A, V> weights(int64_t at) const {
    return read_or<V>(weight, at, A(1));
  }

  template <int V>
  __device__ Terms<V> terms(const Vector<A, V>& v, const Vector<A, V>& gv, const Vector<A, V>& w,
                            A m, A r) const {
    Terms<V> t;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      t.z.element[i] = (v.element[i] - m) * r;
      t.h.element[i] = gv.element[i] * w.element[i];
    }
    return t;
  }

  /// Adds the sums of h and of h z.
  template <int V>
  __device__ void add_up(const Terms<V>& t, A (&sums)[2]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[0] += t.h.element[i];
      sums[1] += t.h.element[i] * t.z.element[i];
    }
  }

  /// Writes the gradients of the elements from `first` on. `out` has those of dsum.
  template <int V>
  __device__ void finish(const Terms<V>& t, Vector<A, V> out, int64_t first, A r, A mean_h,
                         A mean_hz) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      out.element[i] += (t.h.element[i] - mean_h - t.z.element[i] * mean_hz) * r;
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

// The parameters' gradients of rows that are read twice are first summed over chunks of them.
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

/// All gradients of a chunk of rows in one pass: a thread has a vector of each row, and its
/// columns' part of the parameters' gradients, partial [chunks, 2, n].
template <int V, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp, kRowBlocks<T>)
    backward_rows(const __grid_constant__ InputGradient<T> f, compute_t<T>* partial, int64_t rows,
                  int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  RowsAhead<V, T, 3> ahead({f.x, f.g, f.dsum}, rows, n, chunk);
  const bool inside = ahead.inside();
  const int64_t begin = ahead.begin(), end = ahead.end();
  Vector<A, V> w{}, dweight{}, dbias{};
  if (inside) w = f.template weights<V>(ahead.column());
  const A share = 1 / static_cast<A>(n);
  A m = f.mean[begin], r = f.rstd[begin];
  int turn = 0;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t next = min(row + 1, end - 1);
    const A next_m = f.mean[next], next_r = f.rstd[next];
    ahead.advance();
    typename InputGradient<T>::template Terms<V> t{};
    Vector<A, V> out{};
    A sums[2] = {};
    if (inside) {
      const auto gv = ahead[1];
      t = f.terms(ahead[0], gv, w, m, r);
      if (f.dsum) out = ahead[2];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        dweight.element[i] += gv.element[i] * t.z.element[i];
        dbias.element[i] += gv.element[i];
      }
      f.add_up(t, sums);
    }
    if (f.dx) {
      sum_over_block(sums, turn);
      if (inside) {
        f.finish(t, out, row * n + ahead.column(), r, sums[0] * share, sums[1] * share);
      }
    }
    m = next_m;
    r = next_r;
  }
  if (!partial || !inside) return;
  partial += blockIdx.x * 2 * n + ahead.column();
  *reinterpret_cast<Vector<A, V>*>(partial) = dweight;
  *reinterpret_cast<Vector<A, V>*>(partial + n) = dbias;
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

/// Launches of one call's kernels. `f.weight` and so on have `rows` rows of n elements.
template <class T>
class BackwardCall {
  using A = compute_t<T>;
  static constexpr int kVector = 16 / sizeof(T);

 public:
  BackwardCall(const KernelContext& context, const InputGradient<T>& f, int64_t rows, int64_t n)
      : context_(context),
        f_(f),
        rows_(rows),
        n_(n),
        vectors_(rows_take_vectors<T>(n, {f.x, f.weight, f.g, f.dsum, f.dx, f.dbranch})),
        once_(vectors_ && RowChunks::take(n, kVector)),
        once_chunks_(rows, n, kVector, 3),
        chunk_(chunk_of(rows, n)),
        chunks_(ceil_div(rows, chunk_)) {}

  /// `partial` [chunks, 2, n]: the parameters' gradients of each chunk; null if not wanted.
  void run(A* partial) const {
    if (rows_ > 0 && n_ > 0) once_ ? once(partial) : twice(partial);
  }

  /// Rows of a chunk.
  static int64_t chunk_of(int64_t rows, int64_t n) {
    if (RowChunks::take(n, kVector)) return RowChunks(rows, n, kVector, 3).rows;
    return std::max(kShortestChunk, ceil_div(rows, kChunks));
  }

 private:
  void once(A* partial) const {
    launch_kernel(context_, chunks_, once_chunks_.threads, once_chunks_.shared,
                  backward_rows<kVector, T>, f_, partial, rows_, n_, chunk_);
  }

  /// Long rows, and rows that allow no vectors: x and g are read twice.
  void twice(A* partial) const {
    if (f_.dx) {
      over_rows<T>(context_, f_, rows_, n_, {f_.x, f_.weight, f_.g, f_.dsum, f_.dx, f_.dbranch});
    }
    if (!partial) return;
    with_vector_width<kVector>(vectors_, [&]<int V>(std::integral_constant<int, V>) {
      launch_kernel(context_, {ceil_div(n_, kWarp * V), chunks_}, kThreads, 0, sum_chunks<V, T>,
                    f_.x, f_.mean, f_.rstd, f_.g, partial, rows_, n_, chunk_);
    });
  }

  const KernelContext& context_;
  InputGradient<T> f_;
  int64_t rows_, n_;
  bool vectors_, once_;
  RowChunks once_chunks_;
  int64_t chunk_, chunks_;
};

void dropout_add_layer_norm_backward(KernelContext& context, View sum, View weight, View mean,
                                     View rstd, View g, View dsum,
                                     const kernels::BranchDropout& dropout, View dresidual,
                                     View dbranch, View sums) {
  dispatch_device_floating(sum.dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const InputGradient<T> f{
        sum.ptr<T>(),       weight.ptr<T>(),  mean.ptr<A>(),
        rstd.ptr<A>(),      g.ptr<T>(),       dsum.ptr<T>(),
        dresidual.ptr<T>(), dbranch.ptr<T>(), DropoutFactors<A>(dropout.p, dropout.state)};
    BackwardCall<T>(context, f, sum.shape[0], sum.shape[1]).run(sums.ptr<A>());
  });
}

void layer_norm_backward(KernelContext& context, View x, View weight, View mean, View rstd, View g,
                         View dx, View sums) {
  dropout_add_layer_norm_backward(context, x, weight, mean, rstd, g, {}, {}, dx, {}, sums);
}

void layer_norm_chunks(KernelContext&, View x, int64_t& chunks) {
  dispatch_any_floating(x.dtype, "layer_norm", [&]<class S>(TypeTag<S>) {
    chunks = ceil_div(x.shape[0], BackwardCall<device_t<S>>::chunk_of(x.shape[0], x.shape[1]));
  });
}

void add_layer_norm_chunks(KernelContext& context, View sums, View dweight, View dbias) {
  const int64_t chunks = sums.shape[0], n = sums.shape[2];
  if (n == 0) return;
  const DType dtype = dweight.data ? dweight.dtype : dbias.dtype;
  const CardGuard guard(context.device.index);
  dispatch_device_floating(dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    launch_add_chunks(stream_of(context), sums.ptr<const compute_t<T>>(), chunks, 2, n,
                      ColumnSums<T>{{dweight.ptr<T>(), dbias.ptr<T>()}});
  });
}

}  // namespace

void register_layer_norm_backward() {
  kernels::layer_norm_chunks.set(DeviceType::cuda, layer_norm_chunks);
  kernels::add_layer_norm_chunks.set(DeviceType::cuda, add_layer_norm_chunks);
  kernels::layer_norm_backward.set(DeviceType::cuda, layer_norm_backward);
  kernels::dropout_add_layer_norm_backward.set(DeviceType::cuda, dropout_add_layer_norm_backward);
}

}  // namespace sash::cuda
