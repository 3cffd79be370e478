#include <algorithm>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/conv.h"

namespace sash::cpu {
namespace {

/// Calls body(below, share, part, line of x, line of y, inner) for each element of the axis, over
/// all planes [E, B] of x and [S, B] of y.
template <class T, class Start, class Body>
void for_each_pair(View x, View below, View part, View y, Start&& start, Body&& body) {
  const int64_t extent = x.shape[1], size = y.shape[1], inner = x.shape[2];
  const int64_t work = std::max<int64_t>(1, (extent + size) * inner);
  parallel_for_each(x.shape[0], 16384 / work, [&](int64_t plane) {
    T* const xs = x.ptr<T>() + plane * extent * inner;
    T* const ys = y.ptr<T>() + plane * size * inner;
    start(xs, extent * inner);
    for (int64_t i = 0; i < size; ++i) {
      const auto t = static_cast<T>(part.ptr<double>()[i]);
      body(xs + below.ptr<int64_t>()[i] * inner, t, ys + i * inner, inner);
    }
  });
}

void resample(KernelContext&, View x, View below, View part, View y) {
  dispatch_floating(x.dtype, "resample", [&]<class T>(TypeTag<T>) {
    for_each_pair<T>(
        x, below, part, y, [](T*, int64_t) {},
        [](const T* from, T t, T* to, int64_t n) {
          if (t == 0) {
            std::copy_n(from, n, to);
            return;
          }
          for (int64_t b = 0; b < n; ++b) to[b] = from[b] * (1 - t) + from[b + n] * t;
        });
  });
}

void resample_adjoint(KernelContext&, View y, View below, View part, View x) {
  dispatch_floating(x.dtype, "resample_adjoint", [&]<class T>(TypeTag<T>) {
    for_each_pair<T>(
        x, below, part, y, [](T* to, int64_t n) { std::fill_n(to, n, T(0)); },
        [](T* to, T t, const T* from, int64_t n) {
          for (int64_t b = 0; b < n; ++b) to[b] += from[b] * (1 - t);
          if (t == 0) return;
          for (int64_t b = 0; b < n; ++b) to[b + n] += from[b] * t;
        });
  });
}

}  // namespace

void register_resample() {
  kernels::resample.set(DeviceType::cpu, resample);
  kernels::resample_adjoint.set(DeviceType::cpu, resample_adjoint);
}

}  // namespace sash::cpu
