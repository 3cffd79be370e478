#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/conv.h"
#include "../shape/in_float.h"
#include "axis.h"

namespace sash::cpu {
namespace {

using kernels::SlidingWindows;

constexpr int64_t kWork = 16384;

/// Calls body(n, c) for each plane of a view [N, C, ...].
template <class F>
void for_each_plane(View planes, int64_t work, F&& body) {
  const int64_t channels = planes.shape[1];
  parallel_for_each(planes.shape[0] * channels,
                    std::max<int64_t>(1, kWork / std::max<int64_t>(1, work)),
                    [&](int64_t plane) { body(plane / channels, plane % channels); });
}

/// Element `j` of every window along a line of x, 0 outside `inside`.
template <class T>
void unfold_row(const T* x, int64_t step, const Axis& columns, Axis::Range inside, int64_t j,
                T* y) {
  for (int64_t v = 0; v < inside.first; ++v) y[v] = T(0);
  const T* const from = x + columns.at(0, j) * step;
  const int64_t stride = columns.stride * step;
  for (int64_t v = inside.first; v < inside.past; ++v) y[v] = from[v * stride];
  for (int64_t v = inside.past; v < columns.count; ++v) y[v] = T(0);
}

/// Elements (i, j) of every window over a contiguous plane, where windows are as many as elements
/// along a line and one apart: the plane itself, moved by a constant, but for its edges.
template <class T>
void unfold_moved(const T* plane, const Axis& rows, const Axis& columns, int64_t i, int64_t j,
                  T* y) {
  const auto [top, bottom] = rows.inside(i);
  const auto [first, past] = columns.inside(j);
  const int64_t width = columns.count;
  std::fill(y, y + top * width, T(0));
  std::fill(y + bottom * width, y + rows.count * width, T(0));
  if (top >= bottom || first >= past) {
    std::fill(y + top * width, y + bottom * width, T(0));
    return;
  }
  const int64_t move = rows.at(0, i) * width + columns.at(0, j);
  const int64_t begin = top * width + first, end = (bottom - 1) * width + past;
  std::copy(plane + begin + move, plane + end + move, y + begin);
  for (int64_t u = top; u < bottom; ++u) {
    for (int64_t v = 0; v < first; ++v) y[u * width + v] = T(0);
    for (int64_t v = past; v < width; ++v) y[u * width + v] = T(0);
  }
}

/// The first element of the windows' elements (i, j) over one plane.
template <class T>
T* at(View windows, int64_t n, int64_t c, int64_t i, int64_t j) {
  const Strides& s = windows.strides;
  return windows.ptr<T>() + n * s[0] + c * s[1] + i * s[2] + j * s[3];
}

template <class T>
void unfold_as(View x, const SlidingWindows& windows, View y) {
  const Axis rows(windows, 0, x.shape[2]), columns(windows, 1, x.shape[3]);
  const int64_t height = windows.kernel[0], width = windows.kernel[1];
  const bool moved = rows.stride == 1 && columns.stride == 1 && columns.count == columns.extent &&
                     x.strides[3] == 1 && x.strides[2] == columns.extent;
  for_each_plane(x, height * width * rows.count * columns.count, [&](int64_t n, int64_t c) {
    const T* const plane = x.ptr<const T>() + n * x.strides[0] + c * x.strides[1];
    for (int64_t i = 0; i < height; ++i) {
      for (int64_t j = 0; j < width; ++j) {
        T* to = at<T>(y, n, c, i, j);
        if (moved) {
          unfold_moved(plane, rows, columns, i, j, to);
          continue;
        }
        const auto inside = columns.inside(j);
        for (int64_t u = 0; u < rows.count; ++u, to += columns.count) {
          const int64_t row = rows.at(u, i);
          if (row < 0 || row >= rows.extent) {
            std::fill(to, to + columns.count, T(0));
          } else {
            unfold_row(plane + row * x.strides[2], x.strides[3], columns, inside, j, to);
          }
        }
      }
    }
  });
}

void unfold_windows(KernelContext&, View x, const SlidingWindows& windows, View y) {
  if (y.numel() == 0) return;
  dispatch_words(x.dtype, [&]<class T>(TypeTag<T>) { unfold_as<T>(x, windows, y); });
}

template <class T>
void fold_as(View y, const SlidingWindows& windows, View x) {
  const Axis rows(windows, 0, x.shape[2]), columns(windows, 1, x.shape[3]);
  const Axis::Range down = rows.elements(), across = columns.elements();
  const int64_t plane_size = x.shape[2] * x.shape[3];
  const int64_t work = down.size() * across.size() * rows.count * columns.count;
  for_each_plane(x, work, [&](int64_t n, int64_t c) {
    T* const plane = x.ptr<T>() + (n * x.shape[1] + c) * plane_size;
    std::fill_n(plane, plane_size, T(0));
    for (int64_t i = down.first; i < down.past; ++i) {
      for (int64_t j = across.first; j < across.past; ++j) {
        const T* from = at<const T>(y, n, c, i, j);
        const auto [first, past] = columns.inside(j);
        for (int64_t u = 0; u < rows.count; ++u, from += columns.count) {
          const int64_t row = rows.at(u, i);
          if (row < 0 || row >= rows.extent) continue;
          T* const to = plane + row * x.shape[3] + columns.at(0, j);
          if (columns.stride == 1) {
            for (int64_t v = first; v < past; ++v) to[v] += from[v];
          } else {
            for (int64_t v = first; v < past; ++v) to[v * columns.stride] += from[v];
          }
        }
      }
    }
  });
}

void fold_windows(KernelContext&, View y, const SlidingWindows& windows, View x) {
  if (x.numel() == 0) return;
  dispatch_floating(y.dtype, "fold_windows",
                    [&]<class T>(TypeTag<T>) { fold_as<T>(y, windows, x); });
}

/// For each row of windows, whose results begin at `to` and are `count`: calls start(to, count),
/// then add(from, place, to, first, past) for each element (i, j), which the windows in [first,
/// past) have inside x: for window v at from[v step], place + v stride in its plane. At last
/// end(to, count).
template <class T, class Start, class Add, class End>
void over_rows(View x, const SlidingWindows& windows, Start start, Add add, End end) {
  const Axis rows(windows, 0, x.shape[2]), columns(windows, 1, x.shape[3]);
  const Axis::Range across = columns.elements();
  std::vector<Axis::Range> inside;
  for (int64_t j = across.first; j < across.past; ++j) inside.push_back(columns.inside(j));
  const int64_t work = rows.count * columns.count * rows.elements().size() * across.size();
  for_each_plane(x, work, [&](int64_t n, int64_t c) {
    const T* const plane = x.ptr<const T>() + n * x.strides[0] + c * x.strides[1];
    for (int64_t u = 0; u < rows.count; ++u) {
      const int64_t to = ((n * x.shape[1] + c) * rows.count + u) * columns.count;
      start(to, columns.count);
      const Axis::Range down = rows.elements(u, u);
      for (int64_t i = down.first; i < down.past; ++i) {
        const int64_t row = rows.at(u, i);
        for (int64_t j = across.first; j < across.past; ++j) {
          const auto [first, past] = inside[static_cast<size_t>(j - across.first)];
          const int64_t at = columns.at(0, j);
          add(plane + row * x.strides[2] + at * x.strides[3], row * columns.extent + at, to, first,
              past);
        }
      }
      end(to, columns.count);
    }
  });
}

template <class T>
void max_as(View x, const SlidingWindows& windows, View y, View index) {
  T* const top = y.ptr<T>();
  int64_t* const place = index.ptr<int64_t>();
  const int64_t stride = windows.stride[1], step = stride * x.strides[3];
  over_rows<T>(
      x, windows, [&](int64_t to, int64_t count) { std::fill_n(place + to, count, -1); },
      [&](const T* from, int64_t at, int64_t to, int64_t first, int64_t past) {
        for (int64_t v = first; v < past; ++v) {
          T& leader = top[to + v];
          int64_t& best = place[to + v];
          const T value = from[v * step];
          // A leader that is NaN stays. No branches: nobody can predict them.
          const bool wins = (best < 0) | (value > leader) | ((value != value) & (leader == leader));
          leader = wins ? value : leader;
          best = wins ? at + v * stride : best;
        }
      },
      [](int64_t, int64_t) {});
}

template <class T>
void mean_as(View x, const SlidingWindows& windows, View y) {
  T* const sum = y.ptr<T>();
  const int64_t step = windows.stride[1] * x.strides[3];
  const auto size = static_cast<T>(static_cast<double>(windows.kernel[0]) *
                                   static_cast<double>(windows.kernel[1]));
  over_rows<T>(
      x, windows, [&](int64_t to, int64_t count) { std::fill_n(sum + to, count, T(0)); },
      [&](const T* from, int64_t, int64_t to, int64_t first, int64_t past) {
        for (int64_t v = first; v < past; ++v) sum[to + v] += from[v * step];
      },
      [&](int64_t to, int64_t count) {
        for (int64_t v = 0; v < count; ++v) sum[to + v] /= size;
      });
}

void max_windows(KernelContext&, View x, const SlidingWindows& windows, View y, View index) {
  if (index.numel() == 0) return;
  dispatch_floating(x.dtype, "max_windows",
                    [&]<class T>(TypeTag<T>) { max_as<T>(x, windows, y, index); });
}

void mean_windows(KernelContext&, View x, const SlidingWindows& windows, View y) {
  if (y.numel() == 0) return;
  dispatch_floating(x.dtype, "mean_windows",
                    [&]<class T>(TypeTag<T>) { mean_as<T>(x, windows, y); });
}

}  // namespace

void register_windows() {
  kernels::unfold_windows.set(DeviceType::cpu, unfold_windows);
  kernels::fold_windows.set(DeviceType::cpu, in_float_pieces<fold_windows, 2>);
  kernels::max_windows.set(DeviceType::cpu, in_float_pieces<max_windows, 2>);
  kernels::mean_windows.set(DeviceType::cpu, in_float_pieces<mean_windows, 2>);
}

}  // namespace sash::cpu
