#include <cuda_pipeline_primitives.h>

#include "../../../ops/kernels/rms_norm.h"

#include "column_sums.cuh"

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
      const auto a = values(k, at), b = residuals(k, at);
      Vector<T, V> stored;
#pragma unroll
      for (int i = 0; i < V; ++i) stored.element[i] = narrow<T>(a.element[i] + b.element[i]);
      *reinterpret_cast<Vector<T, V>*>(sum + row * n + at) = stored;
      sums.hold(k, stored);
    });
    normalise(sums, row, n);
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
    const A r = 1 / std::sqrt(Team::reduce(squares, Plus{}) / static_cast<A>(n) + eps);
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

// A block of up to kMostWarps warps has a chunk of rows; it reads its rows kAhead ahead.
constexpr int64_t kChunks = 1024, kShortestChunk = 8;
constexpr int kMostWarps = 8, kAhead = 3;

/// Rows of x, g and dsum on their way to a thread's part of shared memory.
template <int V, class T>
struct RowsAhead {
  using Stored = Vector<T, V>;
  Stored* const slots;  ///< [kAhead][3][threads]

  __device__ Stored& slot(int64_t row, int which) const {
    return slots[(row % kAhead * 3 + which) * blockDim.x + threadIdx.x];
  }
  /// Begins to read a vector of each, from element `first` on.
  __device__ void begin(const RmsInputGradient<T>& f, int64_t row, int64_t first) const {
    __pipeline_memcpy_async(&slot(row, 0), f.x + first, sizeof(Stored));
    __pipeline_memcpy_async(&slot(row, 1), f.g + first, sizeof(Stored));
    if (f.dsum) __pipeline_memcpy_async(&slot(row, 2), f.dsum + first, sizeof(Stored));
  }
};

/// Both gradients of a chunk of rows in one pass: a thread has a vector of each row, and its
/// columns' part of dweight, partial [chunks, n].
template <int V, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp, sizeof(T) > 4 ? 2 : 3)
    backward_rows(const __grid_constant__ RmsInputGradient<T> f, compute_t<T>* partial,
                  int64_t rows, int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ A parts[2][kMostWarps];
  const RowsAhead<V, T> ahead{reinterpret_cast<Vector<T, V>*>(memory)};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int at = static_cast<int>(threadIdx.x) * V;
  const bool inside = at < n;
  const int64_t begin = blockIdx.x * chunk, end = min(rows, begin + chunk);
  const auto start = [&](int64_t row) {
    if (inside && row < end) ahead.begin(f, row, row * n + at);
    __pipeline_commit();
  };
  for (int i = 0; i < kAhead - 1; ++i) start(begin + i);
  Vector<A, V> w{}, dweight{};
  if (inside) w = f.template weights<V>(at);
  A r = f.rstd[begin];
  for (int64_t row = begin; row < end; ++row) {
    start(row + kAhead - 1);
    const A next_r = f.rstd[min(row + 1, end - 1)];
    __pipeline_wait_prior(kAhead - 1);
    Vector<A, V> v{}, gv{}, out{};
    A sum = 0;
    if (inside) {
      v = widened(ahead.slot(row, 0));
      gv = widened(ahead.slot(row, 1));
      if (f.dsum) out = widened(ahead.slot(row, 2));
#pragma unroll
      for (int i = 0; i < V; ++i) dweight.element[i] += gv.element[i] * (v.element[i] * r);
      sum = f.product(v, gv, w, r);
    }
    if (f.dx) {
      sum = reduce_warp(sum, Plus{});
      if (warps > 1) {
        A(&part)[kMostWarps] = parts[(row - begin) % 2];
        if (lane == 0) part[warp] = sum;
        __syncthreads();
        sum = part[0];
        for (int k = 1; k < warps; ++k) sum += part[k];
      }
      if (inside) f.finish(v, gv, w, out, row * n + at, r, sum / static_cast<A>(n));
    }
    r = next_r;
  }
  if (partial && inside) *reinterpret_cast<Vector<A, V>*>(partial + blockIdx.x * n + at) = dweight;
}

template <class T>
void backward(const KernelContext& context, const RmsInputGradient<T>& f, int64_t rows, int64_t n,
              T* dweight) {
  using A = compute_t<T>;
  constexpr int V = 16 / sizeof(T);
  if (rows == 0 || n == 0) return;
  const bool vectors = rows_take_vectors<T>(n, {f.x, f.weight, f.g, f.dsum, f.dx});
  if (!vectors || n > kMostWarps * kWarp * V) {  // x and g are read twice
    if (f.dx) over_rows<T>(context, f, rows, n, {f.x, f.weight, f.g, f.dsum, f.dx});
    if (!dweight) return;
    const WeightGradient<T> sums{f.x, f.rstd, f.g, n};
    return sum_columns<T>(context, sums, rows, n, dweight, {f.x, f.g});
  }
  const int64_t chunk = std::max(kShortestChunk, (rows + kChunks - 1) / kChunks);
  const int64_t chunks = (rows + chunk - 1) / chunk;
  const Workspace scratch(context, dweight ? chunks * n * static_cast<int64_t>(sizeof(A)) : 0);
  A* const partial = dweight ? scratch.ptr<A>() : nullptr;
  const CardGuard guard(context.device.index);
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const int64_t threads = (n / V + kWarp - 1) / kWarp * kWarp;
  const auto bytes = static_cast<size_t>(threads * kAhead * 3 * 16);
  backward_rows<V>
      <<<static_cast<unsigned>(chunks), static_cast<unsigned>(threads), bytes, stream>>>(
          f, partial, rows, n, chunk);
  SASH_CUDA_CHECK(cudaGetLastError());
  if (partial) launch_add_chunks(stream, partial, chunks, 1, n, ColumnSums<T>{{dweight}});
}

void rms_norm_forward(KernelContext& context, const TensorView& x, const TensorView& residual,
                      const TensorView& weight, const TensorView& sum, const TensorView& y,
                      const TensorView& rstd, double eps, bool unit_offset) {
  dispatch_any_floating(x.dtype, "rms_norm", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    using A = compute_t<T>;
    const RmsForward<T> forward{
        x.ptr<T>(), residual.ptr<T>(), weight.ptr<T>(),     sum.ptr<T>(),
        y.ptr<T>(), rstd.ptr<A>(),     static_cast<A>(eps), static_cast<A>(unit_offset ? 1 : 0)};
    over_rows<T>(context, forward, x.shape[0], x.shape[1],
                 {x.data, residual.data, weight.data, sum.data, y.data});
  });
}

void rms_norm_backward(KernelContext& context, const TensorView& x, const TensorView& weight,
                       const TensorView& rstd, const TensorView& g, const TensorView& dsum,
                       const TensorView& dx, const TensorView& dweight, bool unit_offset) {
  dispatch_any_floating(x.dtype, "rms_norm", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
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
