#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "../../../core/half.h"
#include "../../../tensor/kernels/view.h"
#include "../runtime/launch.cuh"

/// The one mechanism for elementwise kernels over strided and broadcast operands.
///
/// Axes are merged over all operands, and passed by value. Each thread takes a vector of elements
/// that lie side by side on the innermost axis: 16 bytes of the widest operand where every operand
/// allows it, else one element. The output may be the same view as an input. The caller must avoid
/// any other overlap. Indices have 64 bits.
namespace sash::cuda {

template <class T>
struct DeviceTypeOf {
  using type = T;
};
template <>
struct DeviceTypeOf<float16> {
  using type = __half;
};
template <>
struct DeviceTypeOf<bfloat16> {
  using type = __nv_bfloat16;
};
/// The type that device code uses for a storage type.
template <class T>
using device_t = typename DeviceTypeOf<T>::type;

/// `memory`: axes may be reordered to follow the output's memory. `row_major`: the walk counts the
/// output's elements in logical order.
enum class Order { memory, row_major };

/// `N` operands (the output first) over common axes, outermost first; at least one axis. `vectors`
/// of up to V elements cover the innermost axis.
template <int N>
struct Walk {
  int rank = 0;
  int64_t count = 1;    ///< vectors in all
  int64_t vectors = 1;  ///< in the innermost axis
  int64_t extent[kMaxRank] = {};
  int64_t stride[N][kMaxRank] = {};

  /// Offset of the first element of vector `flat` in each operand, and its place on the innermost
  /// axis.
  __device__ int64_t find(int64_t flat, int width, int64_t (&offset)[N]) const {
    const int64_t outer = divide(flat, vectors);
    const int64_t inner = (flat - outer * vectors) * width;
    int64_t rest = outer;
#pragma unroll
    for (int k = 0; k < N; ++k) offset[k] = inner * stride[k][rank - 1];
    for (int axis = rank - 2; axis >= 0; --axis) {
      const int64_t quotient = divide(rest, extent[axis]);
      const int64_t index = rest - quotient * extent[axis];
      rest = quotient;
#pragma unroll
      for (int k = 0; k < N; ++k) offset[k] += index * stride[k][axis];
    }
    return inner;
  }

  /// Changes a walk over single elements to one over vectors of `width` elements.
  void group(int width) {
    vectors = ceil_div(vectors, width);
    count = count / extent[rank - 1] * vectors;
  }

 private:
  // Division in 64 bits is several times slower, and rarely needed.
  __device__ int64_t divide(int64_t a, int64_t b) const {
    if (count <= UINT32_MAX) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
    return a / b;
  }
};

/// Step of `view` along `axis` of a shape of `rank` axes that it broadcasts to.
inline int64_t broadcast_stride(View view, int axis, int rank) {
  const int at = axis - (rank - view.rank());
  return at < 0 || view.shape[at] == 1 ? 0 : view.strides[at];
}

namespace detail {

/// The axes of `y` that have more than one element, in the order of the walk.
inline Dims walked_axes(View y, Order order) {
  Dims axes;
  for (int axis = 0; axis < y.rank(); ++axis) {
    if (y.shape[axis] == 1) continue;
    int at = axes.rank();
    while (order == Order::memory && at > 0 &&
           y.strides[static_cast<int>(axes[at - 1])] < y.strides[axis]) {
      --at;
    }
    axes.insert(at, axis);
  }
  return axes;
}

}  // namespace detail

/// Axes of extent 1 are dropped, neighbours merged. The walk has the shape of the first view; the
/// others broadcast to it.
template <int N>
Walk<N> make_walk(const std::array<const TensorView*, N>& views, Order order) {
  Walk<N> walk;
  const TensorView& y = *views[0];
  for (const int64_t axis : detail::walked_axes(y, order)) {
    const int64_t extent = y.shape[static_cast<int>(axis)];
    int64_t step[N];
    bool merge = walk.rank > 0;
    for (int k = 0; k < N; ++k) {
      step[k] = broadcast_stride(*views[static_cast<size_t>(k)], static_cast<int>(axis), y.rank());
      merge = merge && walk.stride[k][walk.rank - 1] == step[k] * extent;
    }
    if (!merge) ++walk.rank;
    const int at = walk.rank - 1;
    walk.extent[at] = merge ? walk.extent[at] * extent : extent;
    for (int k = 0; k < N; ++k) walk.stride[k][at] = step[k];
  }
  if (walk.rank == 0) {
    walk.rank = 1;
    walk.extent[0] = 1;
    for (auto& stride : walk.stride) stride[0] = 1;
  }
  walk.vectors = walk.extent[walk.rank - 1];
  walk.count = y.numel();
  return walk;
}

/// The walk along all axes but `axis`, which is erased from the views.
template <int N>
Walk<N> walk_without(int axis, std::array<TensorView, N> views) {
  std::array<const TensorView*, N> all;
  for (size_t k = 0; k < views.size(); ++k) {
    views[k].shape.erase(axis);
    views[k].strides.erase(axis);
    all[k] = &views[k];
  }
  return make_walk<N>(all, Order::memory);
}

/// Whether operand `k` can be read and written in vectors of `width` elements of `T`.
template <class T, int N>
bool takes_vectors(const Walk<N>& walk, int k, const void* data, int width) {
  const auto& stride = walk.stride[k];
  const int last = walk.rank - 1;
  if (N > 1 && k > 0 && stride[last] == 0) return true;
  if (stride[last] != 1) return false;
  if (reinterpret_cast<uintptr_t>(data) % (sizeof(T) * static_cast<size_t>(width)) != 0) {
    return false;
  }
  return std::all_of(stride, stride + last, [&](int64_t step) { return step % width == 0; });
}

template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
  T element[V];
};

/// Writes x in one access. nvcc may split an assignment into several accesses, which write memory
/// at a third of its bandwidth.
template <class T, int V>
__device__ void store_whole(T* y, const Vector<T, V>& x) {
  if constexpr (sizeof(x) == sizeof(int4)) {
    __stwb(reinterpret_cast<int4*>(y), reinterpret_cast<const int4&>(x));
  } else {
    *reinterpret_cast<Vector<T, V>*>(y) = x;
  }
}

/// Loads `count` elements from `x` on; with stride 0, V times the same element.
template <int V, class T>
__device__ Vector<T, V> load(const T* x, int64_t stride, int count) {
  if (V > 1 && stride == 1 && count == V) return *reinterpret_cast<const Vector<T, V>*>(x);
  Vector<T, V> vector;
#pragma unroll
  for (int i = 0; i < V; ++i) vector.element[i] = i < count ? x[i * stride] : T{};
  return vector;
}

template <int V>
__device__ void store(auto* y, const auto& vector, int64_t stride, int count) {
  if (V > 1 && count == V) {
    *reinterpret_cast<std::decay_t<decltype(vector)>*>(y) = vector;
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < count) y[i * stride] = vector.element[i];
  }
}

inline constexpr int kThreads = 256;

/// The number of this thread in the grid, whose blocks have kThreads threads.
inline __device__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

/// Whether 16 bytes can be read at once at `data`.
__host__ __device__ inline bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

/// Calls f with how many elements a thread takes at once: V if `vectors`, else 1.
template <int V, class F>
void with_vector_width(bool vectors, F&& f) {
  if (vectors) return f(std::integral_constant<int, V>{});
  f(std::integral_constant<int, 1>{});
}

template <int V, class F, class Out, class... In>
__global__ void __launch_bounds__(kThreads)
    elementwise_kernel(F f, const __grid_constant__ Walk<1 + sizeof...(In)> walk, Out* y,
                       const In*... x) {
  constexpr int n = 1 + sizeof...(In);
  const int64_t flat = thread_index();
  if (flat >= walk.count) return;
  int64_t offset[n];
  const int last = walk.rank - 1;
  const int64_t left = walk.extent[last] - walk.find(flat, V, offset);
  const int count = left < V ? static_cast<int>(left) : V;
  Vector<Out, V> result;
  [&]<int... K>(std::integer_sequence<int, K...>) {
    [&](auto... in) {
#pragma unroll
      for (int i = 0; i < V; ++i) result.element[i] = f(in.element[i]...);
    }(load<V>(x + offset[K + 1], walk.stride[K + 1][last], count)...);
  }
  (std::make_integer_sequence<int, n - 1>{});
  store<V>(y + offset[0], result, walk.stride[0][last], count);
}

/// Blocks of `kThreads` for `count` threads.
inline int64_t blocks_for(int64_t count) { return ceil_div(count, kThreads); }

/// y = f(x...), element by element; inputs broadcast to y's shape. `f` is `__device__` and takes
/// and returns the device types of `Out` and `In`.
template <class Out, class... In, class F, class... Views>
void elementwise(const KernelContext& context, F f, View y, const Views&... x) {
  static_assert(sizeof...(In) == sizeof...(Views), "one element type per input");
  constexpr int n = 1 + sizeof...(In);
  constexpr int width = static_cast<int>(16 / std::max({sizeof(Out), sizeof(In)...}));
  auto walk = make_walk<n>({&y, &x...}, Order::memory);
  if (walk.count == 0) return;
  int k = 0;
  const bool vectors = takes_vectors<Out>(walk, k, y.data, width) &&
                       (takes_vectors<In>(walk, ++k, x.data, width) && ...);
  with_vector_width<width>(vectors, [&]<int V>(std::integral_constant<int, V>) {
    walk.group(V);
    launch_kernel(context, blocks_for(walk.count), kThreads, 0,
                  elementwise_kernel<V, F, device_t<Out>, device_t<In>...>, f, walk,
                  y.ptr<device_t<Out>>(), static_cast<const device_t<In>*>(x.data)...);
  });
}

}  // namespace sash::cuda
