#pragma once

#include <cmath>

#include "../elementwise/dropout.cuh"
#include "rows_ahead.cuh"

/// The forward passes of layer norm and of RMS norm. Layer norm is `centred`: it subtracts the mean
/// of a row. RMS norm has no mean and no bias.
namespace sash::cuda {

/// y = (x - mean) rstd w + bias with rstd = 1 / sqrt(mean of (x - mean)^2 + eps), for each row of
/// x.
template <class T, bool centred>
struct Norm {
  using A = compute_t<T>;
  template <int V>
  static constexpr int kLeastBlocks = V < 4 ? 0 : 2;  // registers contain a row, weights and biases

  const T* x;
  const T* weight;
  std::conditional_t<centred, const T*, A>
      shift;  ///< the bias, or for RMS norm the number w - weight
  T* y;
  A* mean;
  A* rstd;
  A eps;

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    normalise(Row<Team, V, T>(x + row * n, n), row, n);
  }

  template <class Team, int V>
  __device__ void normalise(const Row<Team, V, T>& values, int64_t row, int64_t n) const {
    const RowOr<Team, V, T> weights(weight, n, A(1)), biases(bias(), n, A(0));
    A m = 0;
    if constexpr (centred) {
      m = sum_of<Team, V>(values, n, [](A v) { return v; }) / static_cast<A>(n);
    }
    const A squares =
        sum_of<Team, V>(values, n, [m](A v) { return centred ? (v - m) * (v - m) : v * v; });
    const A r = 1 / std::sqrt(squares / static_cast<A>(n) + eps);
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = values(k, at);
      const auto w = weights(k, at), b = biases(k, at);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        A& e = out.element[i];
        e = centred ? (e - m) * r * w.element[i] + b.element[i] : e * r * (w.element[i] + offset());
      }
      write<V>(y + row * n + at, out);
    });
    if (Team::rank() != 0) return;
    if constexpr (centred) mean[row] = m;
    rstd[row] = r;
  }

  __device__ const T* bias() const {
    if constexpr (centred) return shift;
    return nullptr;
  }
  __device__ A offset() const {
    if constexpr (!centred) return shift;
    return 0;
  }
};

/// The norm of s = residual + x, which is written to `sum`. Layer norm applies dropout to x. RMS
/// norm may have no residual: then s = x, and no sum is written.
template <class T, bool centred>
struct SumNorm {
  using A = compute_t<T>;
  template <int V>
  static constexpr int kLeastBlocks = Norm<T, centred>::template kLeastBlocks<V>;

  const T* x;
  const T* residual;
  T* sum;
  DropoutFactors<A> dropout;
  Norm<T, centred> norm;  ///< of s

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    // The whole row is read before anything is written, so that a warp waits for memory once.
    const Row<Team, V, T> values(x + row * n, n);
    if (!centred && !residual) return norm.normalise(values, row, n);
    const Row<Team, V, T> residuals(residual + row * n, n);
    Row<Team, V, T> sums(sum + row * n);
    over_row<Team, V>(n, [&](int k, int64_t at) {
      sums.hold(k, add(values(k, at), residuals(k, at), row * n + at));
    });
    norm.normalise(sums, row, n);
  }

  /// Writes elements of the sum from `first` on.
  template <int V>
  __device__ Vector<T, V> add(const Vector<A, V>& added, const Vector<A, V>& total,
                              int64_t first) const {
    Vector<A, V> factor;
    if (centred && dropout.drops()) factor = dropout.template at<V>(first);
    Vector<T, V> stored;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const bool drops = centred && dropout.drops();
      stored.element[i] = narrow<T>(
          total.element[i] + (drops ? added.element[i] * factor.element[i] : added.element[i]));
    }
    *reinterpret_cast<Vector<T, V>*>(sum + first) = stored;
    return stored;
  }
};

/// Does the same as SumNorm for many rows.
template <int V, class T, bool centred>
__global__ void __launch_bounds__(kMostWarps* kWarp, kRowBlocks<T>)
    norm_rows(const __grid_constant__ SumNorm<T, centred> f, int64_t rows, int64_t n,
              int64_t chunk) {
  using A = compute_t<T>;
  const Norm<T, centred>& norm = f.norm;
  RowsAhead<V, T, 2> ahead({f.x, f.residual}, rows, n, chunk);
  const bool inside = ahead.inside();
  Vector<A, V> w{}, b{};
  if (inside) {
    w = read_or<V>(norm.weight, ahead.column(), A(1));
    b = read_or<V>(norm.bias(), ahead.column(), A(0));
  }
#pragma unroll
  for (A& element : w.element) element = centred ? element : element + norm.offset();
  const A share = 1 / static_cast<A>(n);
  int turn = 0;
  for (int64_t row = ahead.begin(); row < ahead.end(); ++row) {
    const int64_t first = row * n + ahead.column();
    ahead.advance();
    Vector<A, V> v{};
    A sum[1] = {}, squares[1] = {}, m = 0;
    if (inside) {
      v = ahead[0];
      if (centred || f.residual) v = widened(f.add(v, ahead[1], first));
    }
    if constexpr (centred) {
#pragma unroll
      for (const A element : v.element) sum[0] += element;
      sum_over_block(sum, turn);
      m = sum[0] * share;
    }
    if (inside) {
#pragma unroll
      for (A& element : v.element) {
        if constexpr (centred) element -= m;
        squares[0] += element * element;
      }
    }
    sum_over_block(squares, turn);
    const A of_squares = centred ? squares[0] * share : squares[0] / static_cast<A>(n);
    const A r = 1 / std::sqrt(of_squares + norm.eps);
    if (threadIdx.x == 0) {
      if constexpr (centred) norm.mean[row] = m;
      norm.rstd[row] = r;
    }
    if (!inside) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A& e = v.element[i];
      e = centred ? e * r * w.element[i] + b.element[i] : e * r * w.element[i];
    }
    write<V>(norm.y + first, v);
  }
}

}  // namespace sash::cuda
