// Windows over planes: a thread per element of the result, so that sums have a fixed order.
#include "../../../ops/kernels/conv.h"
#include "../elementwise/compute.cuh"

namespace sash::cuda {
namespace {

using kernels::SlidingWindows;

/// x [N, C, H, W] with its strides, and the windows over it.
struct Planes {
  SlidingWindows windows;
  int64_t channels, height, width;  ///< C, H, W
  int64_t rows, columns;            ///< windows along each axis
  int64_t strides[4];

  Planes(View x, const SlidingWindows& over)
      : windows(over),
        channels(x.shape[1]),
        height(x.shape[2]),
        width(x.shape[3]),
        rows(over.count(0, x.shape[2])),
        columns(over.count(1, x.shape[3])) {
    for (int axis = 0; axis < 4; ++axis) strides[axis] = x.strides[axis];
  }
  __device__ int64_t row_of(int64_t u, int64_t i) const {
    return u * windows.stride[0] + i * windows.dilation[0] - windows.padding[0];
  }
  __device__ int64_t column_of(int64_t v, int64_t j) const {
    return v * windows.stride[1] + j * windows.dilation[1] - windows.padding[1];
  }
  __device__ bool inside(int64_t row, int64_t column) const {
    return row >= 0 && row < height && column >= 0 && column < width;
  }
  __device__ int64_t offset(int64_t item, int64_t channel, int64_t row, int64_t column) const {
    return item * strides[0] + channel * strides[1] + row * strides[2] + column * strides[3];
  }
};

/// The strides of windows [N, C, KH, KW, U, V] over all but the last two axes, which are
/// contiguous.
struct WindowStrides {
  int64_t item, channel, row, column;

  explicit WindowStrides(View y)
      : item(y.strides[0]), channel(y.strides[1]), row(y.strides[2]), column(y.strides[3]) {}

  __device__ int64_t offset(int64_t n, int64_t c, int64_t i, int64_t j) const {
    return n * item + c * channel + i * row + j * column;
  }
};

/// Splits off the last digit of a number in mixed radix.
template <class I>
__device__ I take_digit(I& number, int64_t radix) {
  const I base = static_cast<I>(radix), quotient = number / base, digit = number - quotient * base;
  number = quotient;
  return digit;
}

/// Calls f with the type of a thread's number: divisions of 32 bits are several times as fast.
template <class F>
void with_index(int64_t count, F&& f) {
  count <= INT32_MAX ? f(TypeTag<uint32_t>{}) : f(TypeTag<int64_t>{});
}

/// A thread writes one element (i, j) of V windows side by side: finding its place takes most of
/// its time.
template <int V, class I, class Word>
__global__ void __launch_bounds__(kThreads)
    unfold_kernel(const __grid_constant__ Planes planes,
                  const __grid_constant__ WindowStrides strides, int64_t count, const Word* x,
                  Word* y) {
  const int64_t flat = thread_index();
  if (flat >= count) return;
  I n = static_cast<I>(flat);
  const SlidingWindows& w = planes.windows;
  const I at = V * take_digit(n, planes.rows * planes.columns / V);
  const I j = take_digit(n, w.kernel[1]), i = take_digit(n, w.kernel[0]);
  const I c = take_digit(n, planes.channels);
  I u = at;
  I v = take_digit(u, planes.columns);
  const Word* const plane = x + planes.offset(n, c, 0, 0);
  int64_t row = planes.row_of(u, i), column = planes.column_of(v, j);
  Vector<Word, V> element;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    element.element[k] = planes.inside(row, column)
                             ? plane[row * planes.strides[2] + column * planes.strides[3]]
                             : Word(0);
    column += w.stride[1];
    if (++v == planes.columns) {
      v = 0;
      row += w.stride[0];
      column = planes.column_of(0, j);
    }
  }
  *reinterpret_cast<Vector<Word, V>*>(y + strides.offset(n, c, i, j) + at) = element;
}

void unfold_windows(KernelContext& context, View x, const SlidingWindows& windows, View y) {
  const int64_t elements = y.numel();
  if (elements == 0) return;
  dispatch_words(x.dtype, [&]<class Word>(TypeTag<Word>) {
    constexpr int kSide = 4;
    const bool whole = y.shape[4] * y.shape[5] % kSide == 0 &&
                       reinterpret_cast<uintptr_t>(y.data) % (kSide * sizeof(Word)) == 0 &&
                       std::all_of(y.strides.begin(), y.strides.begin() + 4,
                                   [](int64_t step) { return step % kSide == 0; });
    with_vector_width<kSide>(whole, [&]<int V>(std::integral_constant<int, V>) {
      const int64_t count = elements / V;
      with_index(elements, [&]<class I>(TypeTag<I>) {  // V times as many as threads
        launch_kernel(context, blocks_for(count), kThreads, 0, unfold_kernel<V, I, Word>,
                      Planes(x, windows), WindowStrides(y), count, x.ptr<Word>(), y.ptr<Word>());
      });
    });
  });
}

/// The window along one axis whose element `i` is at `at`, or -1.
__device__ int window_at(int64_t at, int64_t i, int64_t stride, int64_t padding, int64_t dilation,
                         int64_t count) {
  const int start = static_cast<int>(at + padding - i * dilation), step = static_cast<int>(stride);
  const int window = step == 1 ? start : start / step;  // a division takes long
  return start >= 0 && window * step == start && window < count ? window : -1;
}

template <class I, class T>
__global__ void __launch_bounds__(kThreads)
    fold_kernel(const __grid_constant__ Planes planes,
                const __grid_constant__ WindowStrides strides, int64_t count, const T* y, T* x) {
  const int64_t flat = thread_index();
  if (flat >= count) return;
  I n = static_cast<I>(flat);
  const I column = take_digit(n, planes.width), row = take_digit(n, planes.height);
  const I c = take_digit(n, planes.channels);
  const SlidingWindows& w = planes.windows;
  const T* const plane = y + strides.offset(n, c, 0, 0);
  compute_t<T> sum = 0;
  for (int64_t i = 0; i < w.kernel[0]; ++i) {
    const int u = window_at(row, i, w.stride[0], w.padding[0], w.dilation[0], planes.rows);
    if (u < 0) continue;
    for (int64_t j = 0; j < w.kernel[1]; ++j) {
      const int v = window_at(column, j, w.stride[1], w.padding[1], w.dilation[1], planes.columns);
      if (v < 0) continue;
      sum += widen(plane[i * strides.row + j * strides.column + u * planes.columns + v]);
    }
  }
  x[flat] = narrow<T>(sum);
}

/// Calls launch(TypeTag<index>, TypeTag<element>) for `count` results of `dtype`.
template <class F>
void for_elements(DType dtype, const char* op, int64_t count, F&& launch) {
  if (count == 0) return;
  dispatch_any_floating(dtype, op, [&]<class S>(TypeTag<S>) {
    with_index(count, [&](auto index) { launch(index, TypeTag<device_t<S>>{}); });
  });
}

void fold_windows(KernelContext& context, View y, const SlidingWindows& windows, View x) {
  const int64_t count = x.numel();
  for_elements(x.dtype, "fold_windows", count, [&]<class I, class T>(TypeTag<I>, TypeTag<T>) {
    launch_kernel(context, blocks_for(count), kThreads, 0, fold_kernel<I, T>, Planes(x, windows),
                  WindowStrides(y), count, y.ptr<const T>(), x.ptr<T>());
  });
}

/// Calls body(x, place) for the elements of window `flat`, in row-major order: of its x and of
/// their places h W + w in the plane.
template <class I, class T, class F>
__device__ void over_window(const Planes& planes, int64_t flat, const T* x, F&& body) {
  I n = static_cast<I>(flat);
  const SlidingWindows& w = planes.windows;
  const I v = take_digit(n, planes.columns), u = take_digit(n, planes.rows);
  const I c = take_digit(n, planes.channels);
  const T* const plane = x + planes.offset(n, c, 0, 0);
  const int height = static_cast<int>(planes.height), width = static_cast<int>(planes.width);
  int row = static_cast<int>(planes.row_of(u, 0));
  const int first = static_cast<int>(planes.column_of(v, 0));
  for (int i = 0; i < w.kernel[0]; ++i, row += static_cast<int>(w.dilation[0])) {
    if (row < 0 || row >= height) continue;
    const T* const line = plane + row * planes.strides[2];
    int column = first;
    for (int j = 0; j < w.kernel[1]; ++j, column += static_cast<int>(w.dilation[1])) {
      if (column < 0 || column >= width) continue;
      body(widen(line[column * planes.strides[3]]), int64_t{row} * width + column);
    }
  }
}

template <class I, class T>
__global__ void __launch_bounds__(kThreads)
    max_kernel(const __grid_constant__ Planes planes, int64_t count, const T* x, T* y,
               int64_t* index) {
  const int64_t flat = thread_index();
  if (flat >= count) return;
  int64_t best = -1;
  compute_t<T> leader = 0;
  over_window<I>(planes, flat, x, [&](compute_t<T> value, int64_t place) {
    // A leader that is NaN stays.
    const bool wins = value > leader || (value != value && leader == leader);
    if (best >= 0 && !wins) return;
    best = place;
    leader = value;
  });
  y[flat] = narrow<T>(leader);
  index[flat] = best;
}

template <class I, class T>
__global__ void __launch_bounds__(kThreads)
    mean_kernel(const __grid_constant__ Planes planes, int64_t count, const T* x, T* y) {
  const int64_t flat = thread_index();
  if (flat >= count) return;
  compute_t<T> sum = 0;
  over_window<I>(planes, flat, x, [&](compute_t<T> value, int64_t) { sum += value; });
  const auto size = static_cast<compute_t<T>>(planes.windows.kernel[0] * planes.windows.kernel[1]);
  y[flat] = narrow<T>(sum / size);
}

void max_windows(KernelContext& context, View x, const SlidingWindows& windows, View y,
                 View index) {
  const int64_t count = y.numel();
  for_elements(x.dtype, "max_windows", count, [&]<class I, class T>(TypeTag<I>, TypeTag<T>) {
    launch_kernel(context, blocks_for(count), kThreads, 0, max_kernel<I, T>, Planes(x, windows),
                  count, x.ptr<const T>(), y.ptr<T>(), index.ptr<int64_t>());
  });
}

void mean_windows(KernelContext& context, View x, const SlidingWindows& windows, View y) {
  const int64_t count = y.numel();
  for_elements(x.dtype, "mean_windows", count, [&]<class I, class T>(TypeTag<I>, TypeTag<T>) {
    launch_kernel(context, blocks_for(count), kThreads, 0, mean_kernel<I, T>, Planes(x, windows),
                  count, x.ptr<const T>(), y.ptr<T>());
  });
}

}  // namespace

void register_windows() {
  kernels::unfold_windows.set(DeviceType::cuda, unfold_windows);
  kernels::fold_windows.set(DeviceType::cuda, fold_windows);
  kernels::max_windows.set(DeviceType::cuda, max_windows);
  kernels::mean_windows.set(DeviceType::cuda, mean_windows);
}

}  // namespace sash::cuda
