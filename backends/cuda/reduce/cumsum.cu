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
  static __device__ int64_t row() { return thread_index(); }
};

/// The lines along one axis: their first elements in x and y, their length and their strides.
struct Lines {
  Walk<2> starts;
  int64_t length;
  int64_t x_step;
  int64_t y_step;

  Lines(View x, View y, int axis)
      : starts(walk_without<2>(axis, {x, y})),
        length(x.shape[axis]),
        x_step(x.strides[axis]),
        y_step(y.strides[axis]) {}

  /// Chooses the team for these lines, and calls `launch(TypeTag<Team>)`.
  template <class F>
  void with_team(F launch) const {
    constexpr int64_t kShort = 16, kManyLines = 16384;
    const bool side_by_side = starts.stride[0][starts.rank - 1] < std::abs(x_step);
    if (length <= kShort || (side_by_side && starts.count >= kManyLines)) {
      launch(TypeTag<ThreadTeam>{});
    } else if (length <= kLongestHeld) {
      launch(TypeTag<WarpTeam>{});
    } else {
      launch(TypeTag<BlockTeam>{});
    }
  }
};

/// Returns `sum` + what the threads before this one have; adds the team's total to `sum`.
template <class Team, class A>
__device__ A scan(A x, A& sum) {
  const A start = sum;
  if constexpr (Team::kSize == 1) {
    sum += x;
    return start;
  } else {
    const A within = scan_warp(x);
    const A lower = __shfl_up_sync(kAllLanes, within, 1);
    A before = start;
    if constexpr (Team::kSize == kWarp) {
      sum += __shfl_sync(kAllLanes, within, kWarp - 1);
    } else {
      __shared__ A part[kWarps];
      const int warp = static_cast<int>(threadIdx.x) / kWarp;
      __syncthreads();  // all threads have read the parts of the previous tile
      if (WarpTeam::rank() == kWarp - 1) part[warp] = within;
      __syncthreads();
      for (int w = 0; w < kWarps; ++w) {
        if (w == warp) before = sum;
        sum += part[w];
      }
    }
    return WarpTeam::rank() == 0 ? before : before + lower;
  }
}

/// y[i] = x[0] + ... + x[i], summed in float64, or int64 in int64. In a tile, each thread has
/// elements side by side.
template <class Team, class T>
__global__ void __launch_bounds__(kThreads)
    cumsum_kernel(const __grid_constant__ Lines lines, const T* x, T* y) {
  using A = std::conditional_t<std::is_integral_v<T>, T, double>;
  constexpr int kEach = Team::kSize == kThreads ? 8 : 1;
  const int64_t line = Team::row();
  if (line >= lines.starts.count) return;
  int64_t at[2];
  lines.starts.find(line, 1, at);
  A sum = 0;
  for (int64_t tile = 0; tile < lines.length; tile += Team::kSize * kEach) {
    const int64_t first = tile + Team::rank() * kEach;
    const int64_t count = min(int64_t{kEach}, lines.length - first);
    A value[kEach], mine = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      value[k] = k < count ? static_cast<A>(widen(x[at[0] + (first + k) * lines.x_step])) : 0;
      mine += value[k];
    }
    A prefix = scan<Team>(mine, sum);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      prefix += value[k];
      if (k < count) {
        y[at[1] + (first + k) * lines.y_step] = narrow<T>(static_cast<compute_t<T>>(prefix));
      }
    }
  }
}

void cumsum(KernelContext& context, View x, View y, int axis) {
  if (x.numel() == 0) return;
  const Lines lines(x, y, axis);
  using sash::detail::dispatch_over;
  dispatch_over<float, double, float16, bfloat16, int64_t>(
      x.dtype, "cumsum", [&]<class S>(TypeTag<S>) {
        using T = device_t<S>;
        lines.with_team([&]<class Team>(TypeTag<Team>) {
          launch_kernel(context, ceil_div(lines.starts.count, Team::kRows), kThreads, 0,
                        cumsum_kernel<Team, T>, lines, static_cast<const T*>(x.data), y.ptr<T>());
        });
      });
}

}  // namespace

void register_cumsum() { kernels::cumsum.set(DeviceType::cuda, cumsum); }

}  // namespace sash::cuda
