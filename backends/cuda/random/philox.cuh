#pragma once

#include "../../../core/philox.h"
#include "../elementwise/compute.cuh"

/// For kernels whose element i (row-major index) depends on lane i % 4 of Philox block i / 4. A
/// thread draws whole blocks, and uses vectors of at least 16 bytes if all operands allow it.
namespace sash::cuda {

/// Elements of a thread: whole Philox blocks, and at least 16 bytes.
template <class T>
inline constexpr int kDraws = std::max<int>(4, 16 / sizeof(T));

/// Applies f to each number of a Philox block.
template <class T, class F>
__device__ Vector<T, 4> four_of(const PhiloxBlock& block, F f) {
  Vector<T, 4> y;
#pragma unroll
  for (int i = 0; i < 4; ++i) y.element[i] = f(block.lane[i]);
  return y;
}

/// Writes elements first ... first + kDraws - 1. `f(block)` or `f(block, counter)` returns four
/// numbers in the compute type of T.
template <class T, class F>
__device__ Vector<compute_t<T>, kDraws<T>> draw(F f, const PhiloxState& state, int64_t first) {
  const uint64_t counter = (state.base ? *state.base : 0) + state.offset;
  Vector<compute_t<T>, kDraws<T>> numbers;
#pragma unroll
  for (int at = 0; at < kDraws<T>; at += 4) {
    const uint64_t place = counter + static_cast<uint64_t>((first + at) / 4);
    const PhiloxBlock block = philox(state.seed, place);
    Vector<compute_t<T>, 4> four;
    if constexpr (requires { f(block, place); }) {
      four = f(block, place);
    } else {
      four = f(block);
    }
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) numbers.element[at + lane] = four.element[lane];
  }
  return numbers;
}

/// There are `count` elements in total. If `vectors`, the walk is over vectors, one for each
/// thread.
template <bool vectors, class F, class T, class... In>
__global__ void __launch_bounds__(kThreads)
    philox_kernel(F f, const __grid_constant__ Walk<1 + sizeof...(In)> walk, int64_t count,
                  const PhiloxState state, T* y, const In*... x) {
  constexpr int n = 1 + sizeof...(In), V = kDraws<T>;
  const int64_t thread = thread_index();
  const int64_t first = thread * V;
  if (first >= count) return;
  const int mine = count - first < V ? static_cast<int>(count - first) : V;
  const auto numbers = draw<T>(f, state, first);
  int64_t offset[n];
  [&]<int... K>(std::integer_sequence<int, K...>) {
    if constexpr (vectors) {
      const int last = walk.rank - 1;
      walk.find(thread, V, offset);
      Vector<T, V> result;
      [&](auto... in) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          result.element[i] = narrow<T>((numbers.element[i] * ... * widen(in.element[i])));
        }
      }(load<V>(x + offset[K + 1], walk.stride[K + 1][last], mine)...);
      store<V>(y + offset[0], result, walk.stride[0][last], mine);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (i >= mine) break;
        walk.find(first + i, 1, offset);
        [&](auto... in) {
          y[offset[0]] = narrow<T>((numbers.element[i] * ... * widen(in)));
        }(x[offset[K + 1]]...);
      }
    }
  }
  (std::make_integer_sequence<int, n - 1>{});
}

/// y[i] = f(block i / 4)[i % 4], times x[i] if `x` is given. All have dtype `T`.
template <class T, class F, class... Views>
void philox_map(const KernelContext& context, F f, const PhiloxState& state, View y,
                const Views&... x) {
  constexpr int n = 1 + sizeof...(Views), V = kDraws<device_t<T>>;
  auto walk = make_walk<n>({&y, &x...}, Order::row_major);
  const int64_t count = walk.count, row = walk.extent[walk.rank - 1];
  if (count == 0) return;
  int k = 0;
  const bool vectors = (walk.rank == 1 || row % V == 0) && takes_vectors<T>(walk, k, y.data, V) &&
                       (takes_vectors<T>(walk, ++k, x.data, V) && ...);
  with_vector_width<V>(vectors, [&]<int width>(std::integral_constant<int, width>) {
    constexpr bool whole = width > 1;
    walk.group(width);
    [&]<class... In>(const In*... in) {
      launch_kernel(context, blocks_for(ceil_div(count, V)), kThreads, 0,
                    philox_kernel<whole, F, device_t<T>, In...>, f, walk, count, state,
                    y.ptr<device_t<T>>(), in...);
    }(static_cast<const device_t<T>*>(x.data)...);
  });
}

}  // namespace sash::cuda
