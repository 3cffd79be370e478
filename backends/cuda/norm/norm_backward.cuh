#pragma once

#include "../elementwise/dropout.cuh"
#include "column_sums.cuh"
#include "rows_ahead.cuh"

/// The backward passes of layer norm and of RMS norm. Layer norm is `centred`. RMS norm has no
/// mean, no bias and no dropout.
namespace sash::cuda {

/// With z = (x - mean) rstd and h = g w: dx = dsum + rstd (h - mean(h) - z mean(h z)), and dbranch
/// = dropout(dx). RMS norm has no term mean(h). If dsum is null, it counts as 0. Gradients dx and
/// dbranch that are null are not computed.
///
/// dweight is the column sums of g z, and dbias is the column sums of g (`sum_columns`).
template <class T, bool centred>
struct NormGradient {
  using A = compute_t<T>;
  static constexpr int kAhead = 4, kOutputs = centred ? 2 : 1;
  const T* x;
  const T* weight;
  const A* mean;
  const A* rstd;
  const T* g;
  const T* dsum;
  T* dx;
  T* dbranch;
  DropoutFactors<A> dropout;
  A offset = 0;  ///< of RMS norm: w = weight + offset

  template <int V>
  struct Terms {
    Vector<A, V> z, h;
  };

  /// Processes one row, which is read twice.
  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    const A m = mean_of(row), r = rstd[row];
    const auto terms_at = [&](int64_t at) {
      const int64_t first = row * n + at;
      return terms(read<V>(x + first), read<V>(g + first), weights<V>(at), m, r);
    };
    A sums[kOutputs] = {};
    over_row<Team, V>(n, [&](int, int64_t at) {
      if constexpr (centred) {
        add_up(terms_at(at), sums);
      } else {  // vector by vector
        A of_vector[1] = {};
        add_up(terms_at(at), of_vector);
        sums[0] += of_vector[0];
      }
    });
    const A count = static_cast<A>(n);
#pragma unroll
    for (A& sum : sums) sum = Team::reduce(sum, Plus{}) / count;
    over_row<Team, V>(n, [&](int, int64_t at) {
      const int64_t first = row * n + at;
      finish(terms_at(at), read_or<V>(dsum, first, A(0)), first, r, sums);
    });
  }

  __device__ A mean_of(int64_t row) const {
    if constexpr (centred) return mean[row];
    return 0;
  }
  template <int V>
  __device__ Vector<A, V> weights(int64_t at) const {
    auto w = read_or<V>(weight, at, A(1));
#pragma unroll
    for (A& element : w.element) element = centred ? element : element + offset;
    return w;
  }

  template <int V>
  __device__ Terms<V> terms(const Vector<A, V>& v, const Vector<A, V>& gv, const Vector<A, V>& w,
                            A m, A r) const {
    Terms<V> t;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      t.z.element[i] = (centred ? v.element[i] - m : v.element[i]) * r;
      t.h.element[i] = gv.element[i] * w.element[i];
    }
    return t;
  }

  /// Adds h, if `centred`, and h z to the sums.
  template <int V>
  __device__ void add_up(const Terms<V>& t, A (&sums)[kOutputs]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if constexpr (centred) sums[0] += t.h.element[i];
      sums[kOutputs - 1] += t.h.element[i] * t.z.element[i];
    }
  }

  /// Writes the gradients of the elements from `first` on. `out` has the elements of dsum, `means`
  /// are the sums of `add_up` divided by n.
  template <int V>
  __device__ void finish(const Terms<V>& t, Vector<A, V> out, int64_t first, A r,
                         const A (&means)[kOutputs]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A h = centred ? t.h.element[i] - means[0] : t.h.element[i];
      out.element[i] += (h - t.z.element[i] * means[kOutputs - 1]) * r;
    }
    write<V>(dx + first, out);
    if (!centred || !dbranch) return;
    if (dropout.drops()) {
      const auto factor = dropout.template at<V>(first);
#pragma unroll
      for (int i = 0; i < V; ++i) out.element[i] *= factor.element[i];
    }
    write<V>(dbranch + first, out);
  }

  // For the sums of columns.
  template <int V>
  struct Loaded {
    Vector<T, V> x, g;
    A mean, rstd;
  };
  template <int V>
  __device__ Loaded<V> load(int64_t at, int64_t row) const {
    return {*reinterpret_cast<const Vector<T, V>*>(x + at),
            *reinterpret_cast<const Vector<T, V>*>(g + at), mean_of(row), rstd[row]};
  }
  template <int V>
  __device__ Vector<A, kOutputs * V> use(const Loaded<V>& loaded, int64_t) const {
    const auto v = widened(loaded.x), gv = widened(loaded.g);
    Vector<A, kOutputs * V> sums;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A z = (centred ? v.element[i] - loaded.mean : v.element[i]) * loaded.rstd;
      sums.element[i] = gv.element[i] * z;
      if constexpr (centred) sums.element[V + i] = gv.element[i];
    }
    return sums;
  }
};

/// Computes all gradients of a chunk of rows in one pass. A thread has a vector of each row. It
/// also sums the parameters' gradients of its columns over the chunk, and writes them to partial
/// [chunks, kOutputs, n]: dweight, and dbias if centred.
template <int V, class T, bool centred>
__global__ void __launch_bounds__(kMostWarps* kWarp, kRowBlocks<T>)
    norm_gradient_rows(const __grid_constant__ NormGradient<T, centred> f, compute_t<T>* partial,
                       int64_t rows, int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  using F = NormGradient<T, centred>;
  constexpr int kOutputs = F::kOutputs;
  RowsAhead<V, T, 3> ahead({f.x, f.g, f.dsum}, rows, n, chunk);
  const bool inside = ahead.inside();
  const int64_t begin = ahead.begin(), end = ahead.end();
  Vector<A, V> w{}, parameters[kOutputs] = {};
  if (inside) w = f.template weights<V>(ahead.column());
  const A share = 1 / static_cast<A>(n);
  A m = f.mean_of(begin), r = f.rstd[begin];
  int turn = 0;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t next = min(row + 1, end - 1);
    const A next_m = f.mean_of(next), next_r = f.rstd[next];
    ahead.advance();
    typename F::template Terms<V> t{};
    Vector<A, V> v{}, gv{}, out{};
    A means[kOutputs] = {};
    if (inside) {
      v = ahead[0];
      gv = ahead[1];
      t = f.terms(v, gv, w, m, r);
      if (f.dsum) out = ahead[2];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        parameters[0].element[i] += gv.element[i] * t.z.element[i];
        if constexpr (centred) parameters[1].element[i] += gv.element[i];
      }
      f.add_up(t, means);
    }
    if (f.dx) {
      sum_over_block(means, turn);
      if (inside) {
#pragma unroll
        for (A& mean : means) mean = centred ? mean * share : mean / static_cast<A>(n);
        // Computed again, so that the product g w and the subtraction are fused.
        if constexpr (!centred) t = f.terms(v, gv, w, m, r);
        f.finish(t, out, row * n + ahead.column(), r, means);
      }
    }
    m = next_m;
    r = next_r;
  }
  if (!partial || !inside) return;
  partial += blockIdx.x * kOutputs * n + ahead.column();
#pragma unroll
  for (int k = 0; k < kOutputs; ++k) {
    *reinterpret_cast<Vector<A, V>*>(partial + k * n) = parameters[k];
  }
}

}  // namespace sash::cuda
