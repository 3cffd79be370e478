#include "../../../ops/kernels/norm.h"

#include <cmath>

#include "../elementwise/compute.cuh"
#include "../elementwise/dropout.cuh"
#include "rows_ahead.cuh"

namespace sash::cuda {
namespace {

template <class T>
struct Forward {
  using A = compute_t<T>;
  template <int V>
  static constexpr int kLeastBlocks = V < 4 ? 0 : 2;  // a row, the weights and biases are held

  const T* x;
  const T* weight;
  const T* bias;
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
    const RowOr<Team, V, T> weights(weight, n, A(1)), biases(bias, n, A(0));
    const A m = mean_of<Team, V>(values, n);
    const A r = rstd_of<Team, V>(values, m, n);
    over_row<Team, V>(n, [&](int k, int64_t at) {
      auto out = values(k, at);
      const auto w = weights(k, at), b = biases(k, at);
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

/// sum = residual + dropout(branch), and the norm of that.
template <class T>
struct SumForward {
  using A = compute_t<T>;
  template <int V>
  static constexpr int kLeastBlocks = Forward<T>::template kLeastBlocks<V>;

  const T* branch;
  const T* residual;
  T* sum;
  DropoutFactors<A> dropout;
  Forward<T> norm;  // of x = sum

  template <class Team, int V>
  __device__ void run(int64_t row, int64_t n) const {
    // Read as a whole before anything is written: a warp then waits for memory once.
    const Row<Team, V, T> branches(branch + row * n, n), residuals(residual + row * n, n);
    Row<Team, V, T> values(sum + row * n);
    over_row<Team, V>(n, [&](int k, int64_t at) {
      values.hold(k, add(residuals(k, at), branches(k, at), row * n + at));
    });
    norm.normalise(values, row, n);
  }

  /// Writes the sum's elements from `first` on.
  template <int V>
  __device__ Vector<T, V> add(const Vector<A, V>& total, const Vector<A, V>& added,
                              int64_t first) const {
    Vector<A, V> factor;
    if (dropout.drops()) factor = dropout.template at<V>(first);
    Vector<T, V> stored;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      stored.element[i] =
          narrow<T>(total.element[i] +
                    (dropout.drops() ? added.element[i] * factor.element[i] : added.element[i]));
    }
    *reinterpret_cast<Vector<T, V>*>(sum + first) = stored;
    return stored;
  }
};

/// The same as SumForward, of many rows.
template <int V, class T>
__global__ void __launch_bounds__(kMostWarps* kWarp, kRowBlocks<T>)
    forward_rows(const __grid_constant__ SumForward<T> f, int64_t rows, int64_t n, int64_t chunk) {
  using A = compute_t<T>;
  RowsAhead<V, T, 2> ahead({f.branch, f.residual}, rows, n, chunk);
  const bool inside = ahead.inside();
  Vector<A, V> w{}, b{};
  if (inside) {
    w = read_or<V>(f.norm.weight, ahead.column(), A(1));
    b = read_or<V>(f.norm.bias, ahead.column(), A(0));
  }
  const A share = 1 / static_cast<A>(n);
  int turn = 0;
  for (int64_t row = ahead.begin(); row < ahead.end(); ++row) {
    const int64_t first = row * n + ahead.column();
    ahead.advance();
    Vector<A, V> v{};
    A sum[1] = {}, squares[1] = {};
    if (inside) {
      v = widened(f.add(ahead[1], ahead[0], first));
#pragma unroll
      for (const A element : v.element) sum[0] += element;
    }
    sum_over_block(sum, turn);
    const A m = sum[0] * share;
    if (inside) {
#pragma unroll
      for (A& element : v.element) {
        element -= m;
        squares[0] += element * element;
      }
    }
    sum_over_block(squares, turn);
    const A r = 1 / std::sqrt(squares[0] * share + f.norm.eps);
    if (threadIdx.x == 0) {
      f.norm.mean[row] = m;
      f.norm.rstd[row] = r;
    }
    if (!inside) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) v.element[i] = v.element[i] * r * w.element[i] + b.element[i];
    write<V>(f.norm.y + first, v);
  }
}

template <class T>
Forward<T> forward_of(View x, View weight, View bias, View y, View mean, View rstd, double eps) {
  using A = compute_t<T>;
  return {x.ptr<T>(),    weight.ptr<T>(), bias.ptr<T>(),      y.ptr<T>(),
          mean.ptr<A>(), rstd.ptr<A>(),   static_cast<A>(eps)};
}

void layer_norm_forward(KernelContext& context, View x, View weight, View bias, View y, View mean,
                        View rstd, double eps) {
  dispatch_device_floating(x.dtype, "layer_norm", [&]<class T>(TypeTag<T>) {
    over_rows<T>(context, forward_of<T>(x, weight, bias, y, mean, rstd, eps), x.shape[0],
                 x.shape[1], {x.data, weight.data, bias.data, y.data});
  });
}

void dropout_add_layer_norm_forward(KernelContext& context, View branch, View residual, View weight,
                                    View bias, const kernels::BranchDropout& dropout, View sum,
                                    View y, View mean, View rstd, double eps) {
  dispatch_device_floating(sum.dtype, "dropout_add_layer_norm", [&]<class T>(TypeTag<T>) {
    const SumForward<T> forward{branch.ptr<T>(), residual.ptr<T>(), sum.ptr<T>(),
                                DropoutFactors<compute_t<T>>(dropout.p, dropout.state),
                                forward_of<T>(sum, weight, bias, y, mean, rstd, eps)};
    over_rows_ahead<T>(context, forward, forward_rows<16 / sizeof(T), T>, sum.shape[0],
                       sum.shape[1],
                       {branch.data, residual.data, weight.data, bias.data, sum.data, y.data});
  });
}

struct Scale {
  __device__ auto operator()(auto x, auto mean, auto scale, auto shift) const {
    return (x - mean) * scale + shift;
  }
};

void scale_channels(KernelContext& context, View x, View mean, View scale, View shift, View y) {
  const auto column = [](TensorView channels) {  // [C, 1]
    channels.shape.push_back(1);
    channels.strides.push_back(0);
    return channels;
  };
  dispatch_floating(x.dtype, "batch_norm", [&]<class T>(TypeTag<T>) {
    elementwise<T, T, T, T, T>(context, Scale{}, y, x, column(mean), column(scale), column(shift));
  });
}

}  // namespace

void register_layer_norm() {
  kernels::layer_norm_forward.set(DeviceType::cuda, layer_norm_forward);
  kernels::dropout_add_layer_norm_forward.set(DeviceType::cuda, dropout_add_layer_norm_forward);
}

void register_scale_channels() { kernels::scale_channels.set(DeviceType::cuda, scale_channels); }

}  // namespace sash::cuda
