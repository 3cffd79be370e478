#include "../../../ops/kernels/norm.h"

#include "column_sums.cuh"
#include "rows_ahead.cuh"

namespace sash::cuda {
namespace {

/// y = s rstd w with s = x + residual, which is written to `sum`, or s = x without a residual.
template <class T>
struct RmsForward {
  using A = compute_t<T>;
  template <int V>
  static constexpr int kLeastBlocks = V < 4 ? 0 : 2;  // a row and the weights are held

  const T* x;
  const T* residual;
  const T* weight;
  T* sum;
  T* y;
  A* rstd;
  A eps;
  A offset;  // w = weight + offset

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const Row<Team, V, T> values(x + row * n, n);
    if (!residual) return normalise(values, row, n);
    const Row<Team, V, T> residuals(residual + row * n, n);
    Row<Team, V, T> sums(sum + row * n);
    over_row<Team, V>(n, [&](int k, int64_t at) {
      sums.hold(k, add(values(k, at), residuals(k, at), row * n + at));
    });
    normalise(sums, row, n);
  }

  /// Writes a + b to `sum`, from element `first` on.
  template <int V>
  __device__ Vector<T, V> add(const Vector<A, V>& a, const Vector<A, V>& b, int64_t first) const {
    Vector<T, V> stored;
#pragma unroll
    for (int i = 0; i < V; ++i) stored.element[i] = narrow<T>(a.element[i] + b.element[i]);
    *reinterpret_cast<Vector<T, V>*>(sum + first) = stored;
    return stored;
  }

  __device__ A rstd_of(A squares, int64_t n) const {
    return 1 / std::sqrt(squares / static_cast<A>(n) + eps);
  }

  template <class Team, int V>
  __device__ void normalise(const Row<Team, V, T>& values, int64_t row, int64_t n) const {
    const RowOr<Team, V, T> weights(weight, n, A(1));
    A squares = 0;
    over_row<Team, V>(n, [&](int k, int64_t at) {
      const auto v = values(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) squares += v.element[i] * v.element[i];
    });
    const A r = rstd_of(Team::reduce(squares, Plus{}), n);
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = values(k, at);
      const auto w = weights(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) out.element[i] = out.element[i] * r * (w.element[i] + offset);
      write<V>(y + row * n + at, out);
    });
    if (Team::rank() == 0) rstd[row] = r;
  }
};

/// dx = dsum + rstd (h - z mean(h z)) with z = x rstd and h = g w. dsum may be null (0).
template <class T>
struct RmsInputGradient {
  using A = compute_t<T>;
  const T* x;
  const T* weight;
  const A* rstd;
  const T* g;
  const T* dsum;
  T* dx;
  A offset;

  /// Of a row that is read twice.
  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const A r = rstd[row];
    A sum = 0;
    over_row<Team, V>(n, [&](int, int64_t at) {
      sum += product(read<V>(x + row * n + at), read<V>(g + row * n + at), weights<V>(at), r);
    });
    const A mean = Team::reduce(sum, Plus{}) / static_cast<A>(n);
    over_row<Team, V>(n, [&](int, int64_t at) {
      const int64_t first = row * n + at;
      finish(read<V>(x + first), read<V>(g + first), weights<V>(at), read_or<V>(dsum, first, A(0)),
             first, r, mean);
    });
  }

  template <int V>
  __device__ Vector<A, V> weights(int64_t at) const {
    auto w = read_or<V>(weight, at, A(1));
#pragma unroll
    for (A& element : w.element) element += offset;
    return w;
  }

  /// The sum of h z over a vector.
  template <int V>
  __device__ A product(const Vector<A, V>& v, const Vector<A, V>& gv, const Vector<A, V>& w,
                       A r) const {
    A sum = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) sum += gv.element[i] * w.element[i] * (v.element[i] * r);
    return sum;
  }

  /// Writes the gradients of the elements from `first` on. `out` has those of dsum.
  template <int V>
  __device__ void finish(const Vector<A, V>& v, const Vector<A, V>& gv, const Vector<A, V>& w,
                         Vector<A, V> out, int64_t first, A r, A mean) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      out.element[i] += (gv.element[i] * w.element[i] - v.element[i] * r * mean) * r;
    }
    write<V>(dx + first, out);
  }
};

/// g z, whose columns' sums are dweight.
template <class T>
struct WeightGradient {
  using A = compute_t<T>;
  static constexpr int kAhead = 4;
  const T* x;
  const A* rstd;
  const T* g;
  int64_t n;

  template <int V>
  struct Loaded {
    Vector<T, V> x, g;
    A rstd;
  };
  template <int V>
  __device__ Loaded<V> load(int64_t at) const {
    return {*reinterpret_cast<const Vector<T, V>*>(x + at),
            *reinterpret_cast<const Vector<T, V>*>(g + at), rstd[at / n]};
  }
  template <int V>
  __device__ Vector<A, V> use(const Loaded<V>& loaded, int64_t) const {
    auto v = widened(loaded.x);
    const auto gv = widened(loaded.g);
#pragma unroll
    for (int i = 0; i < V; ++i) v.element[i] = gv.element[i] * (v.element[i] * loaded.rstd);
    return v;
  }
};

/// The same as RmsForward, of many rows.
template <int V, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp, kRowBlocks<T>)
    forward_rows(const __grid_constant__ RmsForward<T> f, int64_t rows, int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  RowsAhead<V, T, 2> ahead({f.x, f.residual}, rows, n, chunk);
  Vector<A, V> w{};
  if (ahead.inside()) w = read_or<V>(f.weight, ahead.column(), A(1));
#pragma unroll
  for (A& element : w.element) element += f.offset;
  int turn = 0;
  for (int64_t row = ahead.begin(); row < ahead.end(); ++row) {
    const int64_t first = row * n + ahead.column();
    ahead.advance();
    Vector<A, V> v{};
    A squares[1] = {};
    if (ahead.inside()) {
      v = ahead[0];
      if (f.residual) v = widened(f.add(v, ahead[1], first));
#pragma unroll
      for (const A element : v.element) squares[0] += element * element;
    }
    sum_over_block(squares, turn);
    const A r = f.rstd_of(squares[0], n);
    if (threadIdx.x == 0) f.rstd[row] = r;
    if (!ahead.inside()) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) v.element[i] = v.element[i] * r * w.element[i];
    write<V>(f.y + first, v);
  }
}

/// Both gradients of a chunk of rows in one pass: a thread has its columns' part of dweight,
/// partial [chunks, n].
template <int V, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp, kRowBlocks<T>)
    backward_rows(const __grid_constant__ RmsInputGradient<T> f, compute_t<T>* partial,
                  int64_t rows, int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  RowsAhead<V, T, 3> ahead({f.x, f.g, f.dsum}, rows, n, chunk);
  const bool inside = ahead.inside();
  const int64_t begin = ahead.begin(), end = ahead.end();
  Vector<A, V> w{}, dweight{};
  if (inside) w = f.template weights<V>(ahead.column());
  A r = f.rstd[begin];
  int turn = 0;
  for (int64_t row = begin; row < end; ++row) {
    const A next_r = f.rstd[min(row + 1, end - 1)];
    ahead.advance();
    Vector<A, V> v{}, gv{}, out{};
    A sum[1] = {};
    if (inside) {
      v = ahead[0];
      gv = ahead[1];
      if (f.dsum) out = ahead[2];
#pragma unroll
      for (int i = 0; i < V; ++i) dweight.element[i] += gv.element[i] * (v.element[i] * r);
      sum[0] = f.product(v, gv, w, r);
    }
    if (f.dx) {
      sum_over_block(sum, turn);
      if (inside) {
        f.finish(v, gv, w, out, row * n + ahead.column(), r, sum[0] / static_cast<A>(n));
      }
    }
    r = next_r;
  }
  if (!partial || !inside) return;
  *reinterpret_cast<Vector<A, V>*>(partial + blockIdx.x * n + ahead.column()) = dweight;
}

template <class T>
void backward(const KernelContext& context, const RmsInputGradient<T>& f, int64_t rows, int64_t n,
              T* dweight) {
  using A = compute_t<T>;
  constexpr int V = 16 / sizeof(T);
  if (rows == 0 || n == 0) return;
  const bool vectors = rows_take_vectors<T>(n, {f.x, f.weight, f.g, f.dsum, f.dx});
  if (!vectors || !RowChunks::take(n, V)) {  // x and g are read twice
    if (f.dx) over_rows<T>(context, f, rows, n, {f.x, f.weight, f.g, f.dsum, f.dx});
    if (!dweight) return;
    const WeightGradient<T> sums{f.x, f.rstd, f.g, n};
    return sum_columns<T>(context, sums, rows, n, dweight, {f.x, f.g});
  }
  const RowChunks chunks(rows, n, V, 3);
  const Workspace scratch(context, dweight ? chunks.count * n * int64_t{sizeof(A)} : 0);
  A* const partial = dweight ? scratch.ptr<A>() : nullptr;
  const CardGuard guard(context.device.index);
  launch_kernel(context, chunks.count, chunks.threads, chunks.shared, backward_rows<V, T>, f,
                partial, rows, n, chunks.rows);
  if (!partial) return;
  launch_add_chunks(stream_of(context), partial, chunks.count, 1, n, ColumnSums<T>{{dweight}});
}

void rms_norm_forward(KernelContext& context, View x, View residual, View weight, View sum, View y,
                      View rstd, double eps, bool unit_offset) {
  dispatch_device_floating(x.dtype, "rms_norm", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const RmsForward<T> forward{
        x.ptr<T>(), residual.ptr<T>(), weight.ptr<T>(),     sum.ptr<T>(),
        y.ptr<T>(), rstd.ptr<A>(),     static_cast<A>(eps), static_cast<A>(unit_offset ? 1 : 0)};
    over_rows_ahead<T>(context, forward, forward_rows<16 / sizeof(T), T>, x.shape[0], x.shape[1],
                       {x.data, residual.data, weight.data, sum.data, y.data});
  });
}

void rms_norm_backward(KernelContext& context, View x, View weight, View rstd, View g, View dsum,
                       View dx, View dweight, bool unit_offset) {
  dispatch_device_floating(x.dtype, "rms_norm", [&]<class T>(TypeTag<T>) {
    using A = compute_t<T>;
    const RmsInputGradient<T> f{x.ptr<T>(),
                                weight.ptr<T>(),
                                rstd.ptr<A>(),
                                g.ptr<T>(),
                                dsum.ptr<T>(),
                                dx.ptr<T>(),
                                static_cast<A>(unit_offset ? 1 : 0)};
    backward<T>(context, f, x.shape[0], x.shape[1], dweight.ptr<T>());
  });
}

}  // namespace

void register_rms_norm() {
  kernels::rms_norm_forward.set(DeviceType::cuda, rms_norm_forward);
  kernels::rms_norm_backward.set(DeviceType::cuda, rms_norm_backward);
}

}  // namespace sash::cuda
