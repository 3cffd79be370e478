// argmax, argmin and cumsum: reductions along one axis that depend on positions.
#include <cstdlib>

#include "../../../ops/kernels/reduce.h"
#include "../norm/rows.cuh"

namespace sash::cuda {
namespace {

/// A team of one thread, for short lines and for many lines side by side.
struct ThreadTeam {
  static constexpr int kSize = 1;
  static constexpr int kRows = kThreads;
  static __device__ int rank() { return 0; }
  static __device__ int64_t row() {
    return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  }
  template <class T, class F>
  static __device__ T reduce(T x, F) {
    return x;
  }
};

/// The lines along one axis: their first elements in x and y, their length and their strides.
struct Lines {
  Walk<2> starts;
  int64_t length;
  int64_t x_step;
  int64_t y_step;

  Lines(const TensorView& x, const TensorView& y, int axis)
      : length(x.shape[axis]), x_step(x.strides[axis]), y_step(y.strides[axis]) {
    TensorView views[2] = {x, y};
    for (TensorView& view : views) {
      view.shape.erase(axis);
      view.strides.erase(axis);
    }
    starts = make_walk<2>({&views[0], &views[1]}, Order::memory);
  }

  /// Chooses the team for these lines, and calls `launch(TypeTag<Team>, blocks)`.
  template <class F>
  void with_team(F launch) const {
    constexpr int64_t kShort = 16, kManyLines = 16384;
    const bool side_by_side = starts.stride[0][starts.rank - 1] < std::abs(x_step);
    const auto run = [&]<class Team>(TypeTag<Team> team) {
      launch(team, static_cast<unsigned>((starts.count + Team::kRows - 1) / Team::kRows));
    };
    if (length <= kShort || (side_by_side && starts.count >= kManyLines)) {
      run(TypeTag<ThreadTeam>{});
    } else if (length <= kLongestHeld) {
      run(TypeTag<WarpTeam>{});
    } else {
      run(TypeTag<BlockTeam>{});
    }
  }
};

template <class T>
struct Leader {
  T value;
  int64_t index;
};

template <class T>
__device__ Leader<T> shuffle_xor(Leader<T> x, int step) {
  return {__shfl_xor_sync(kAllLanes, x.value, step), __shfl_xor_sync(kAllLanes, x.index, step)};
}

/// The greater of two (kSign > 0) or the lesser. NaN wins; ties take the lower index.
template <int kSign>
struct Lead {
  template <class T>
  __device__ Leader<T> operator()(Leader<T> a, Leader<T> b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (a_nan || a.value == b.value) return a.index < b.index ? a : b;
    return (kSign > 0 ? a.value > b.value : a.value < b.value) ? a : b;
  }
};

template <int kSign, class Team, class T>
__global__ void __launch_bounds__(kThreads)
    find_extremum(const __grid_constant__ Lines lines, const T* x, int64_t* y) {
  const int64_t line = Team::row();
  if (line >= lines.starts.count) return;
  int64_t at[2];
  lines.starts.find(line, 1, at);
  const auto element = [&](int64_t i) { return widen(x[at[0] + i * lines.x_step]); };
  // A thread without elements starts from element 0, as all do.
  Leader<compute_t<T>> best{element(0), 0};
#pragma unroll 4
  for (int64_t i = Team::rank(); i < lines.length; i += Team::kSize) {
    best = Lead<kSign>{}(best, Leader<compute_t<T>>{element(i), i});
  }
  best = Team::reduce(best, Lead<kSign>{});
  if (Team::rank() == 0) y[at[1]] = best.index;
}

template <int kSign>
void arg_extremum(KernelContext& context, const TensorView& x, const TensorView& y, int axis) {
  if (y.numel() == 0) return;
  const Lines lines(x, y, axis);
  const CardGuard guard(context.device.index);
  dispatch_any_numeric(x.dtype, kSign > 0 ? "argmax" : "argmin", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    lines.with_team([&]<class Team>(TypeTag<Team>, unsigned blocks) {
      find_extremum<kSign, Team>
          <<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
              lines, static_cast<const T*>(x.data), y.ptr<int64_t>());
    });
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

/// Inclusive prefix sum over the lanes of a warp.
__device__ double scan_warp(double x) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const double before = __shfl_up_sync(kAllLanes, x, step);
    if (WarpTeam::rank() >= step) x += before;
  }
  return x;
}

/// Returns `sum` + the inclusive prefix sum of x over the team; adds the team's total to `sum`.
template <class Team>
__device__ double scan(double x, double& sum) {
  if constexpr (Team::kSize == 1) {
    return sum += x;
  } else if constexpr (Team::kSize == kWarp) {
    const double mine = sum + scan_warp(x);
    sum = __shfl_sync(kAllLanes, mine, kWarp - 1);
    return mine;
  } else {
    __shared__ double part[kWarps];
    const double within = scan_warp(x);
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    __syncthreads();  // all threads have read the parts of the previous tile
    if (WarpTeam::rank() == kWarp - 1) part[warp] = within;
    __syncthreads();
    double before = sum;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) before = sum;
      sum += part[w];
    }
    return before + within;
  }
}

/// y[i] = x[0] + ... + x[i], summed in float64. A tile has one element per thread of the team.
template <class Team, class T>
__global__ void __launch_bounds__(kThreads)
    cumsum_kernel(const __grid_constant__ Lines lines, const T* x, T* y) {
  const int64_t line = Team::row();
  if (line >= lines.starts.count) return;
  int64_t at[2];
  lines.starts.find(line, 1, at);
  double sum = 0;
  for (int64_t tile = 0; tile < lines.length; tile += Team::kSize) {
    const int64_t i = tile + Team::rank();
    const bool inside = i < lines.length;
    const double value = inside ? static_cast<double>(widen(x[at[0] + i * lines.x_step])) : 0.0;
    const double prefix = scan<Team>(value, sum);
    if (inside) y[at[1] + i * lines.y_step] = narrow<T>(static_cast<compute_t<T>>(prefix));
  }
}

void cumsum(KernelContext& context, const TensorView& x, const TensorView& y, int axis) {
  if (x.numel() == 0) return;
  const Lines lines(x, y, axis);
  const CardGuard guard(context.device.index);
  dispatch_any_floating(x.dtype, "cumsum", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    lines.with_team([&]<class Team>(TypeTag<Team>, unsigned blocks) {
      cumsum_kernel<Team>
          <<<blocks, kThreads, 0, static_cast<cudaStream_t>(context.stream.handle)>>>(
              lines, static_cast<const T*>(x.data), y.ptr<T>());
    });
    SASH_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace

void register_along_axis() {
  kernels::argmax.set(DeviceType::cuda, arg_extremum<1>);
  kernels::argmin.set(DeviceType::cuda, arg_extremum<-1>);
  kernels::cumsum.set(DeviceType::cuda, cumsum);
}

}  // namespace sash::cuda
