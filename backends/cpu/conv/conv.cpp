#include <algorithm>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/conv.h"
#include "../../../tensor/kernels/memory.h"
#include "direct.h"

namespace sash::cpu {
namespace {

#if SASH_MICRO_KERNEL

using kernels::SlidingWindows;

// Convolutions of few filters, with strides of 1. Vectors hold neighbouring windows. An image with
// its padding is one line of rows, and windows that cross an edge are computed too.
template <class T>
void convolve_line(KernelContext& context, View x, View weight, const TensorView* bias,
                   const SlidingWindows& windows, int64_t groups, View y) {
  using Sums = WindowSums<T>;
  constexpr int64_t kSize = sizeof(T), kLine = Sums::kLine;
  const int64_t top = windows.padding[0], left = windows.padding[1];
  const int64_t width = x.shape[3] + 2 * left, plane = (x.shape[2] + 2 * top) * width;
  const int64_t channels = weight.shape[1], filters = y.shape[1] / groups;
  const int64_t size = x.shape[0] * x.shape[1] * plane + kLine;  // the last vector ends past x
  const Workspace memory(context, size * kSize);
  T* const padded = memory.ptr<T>();
  parallel_for(size, 65536,
               [&](int64_t begin, int64_t end) { std::fill(padded + begin, padded + end, T(0)); });
  const TensorView inner{padded + top * width + left, x.dtype, x.device, x.shape,
                         Strides{x.shape[1] * plane, plane, width, 1}};
  kernels::copy(context, x, inner);

  const typename Sums::Box box{{channels, windows.kernel[0], windows.kernel[1]},
                               {weight.strides[1], weight.strides[2], weight.strides[3]},
                               {plane, windows.dilation[0] * width, windows.dilation[1]}};
  const int64_t across = y.shape[3], all = (y.shape[2] - 1) * width + across;
  const int64_t result = y.shape[2] * across;
  const int64_t length = even_piece(all, 512, kLine), parts = pieces(all, length);
  const int64_t together = even_piece(filters, Sums::kItems, 1);
  const int64_t work = filters * length * channels * windows.kernel[0] * windows.kernel[1];
  parallel_for_each(
      x.shape[0] * groups * parts, 65536 / std::max<int64_t>(1, work), [&](int64_t t) {
        const int64_t item = t / parts, group = item % groups, begin = t % parts * length;
        const int64_t end = std::min(begin + length, all);
        const Workspace buffer(context, together * length * kSize);
        T* const sums = buffer.ptr<T>();
        for (int64_t o = group * filters; o < (group + 1) * filters; o += together) {
          const int64_t count = std::min(together, (group + 1) * filters - o);
          T* const to = y.ptr<T>() + (item * filters + o % filters) * result;
          for (int64_t i = 0; i < count; ++i) {
            const T start = bias ? bias->ptr<const T>()[(o + i) * bias->strides[0]] : T(0);
            std::fill_n(sums + i * length, length, start);
          }
          for (int64_t p = begin; p < end; p += kLine) {
            Sums::run({weight.ptr<const T>() + o * weight.strides[0],
                       padded + item * channels * plane + p, sums + p - begin, sums + p - begin,
                       weight.strides[0], length, length, count, kLine},
                      box);
          }
          for (int64_t u = begin / width; u < y.shape[2] && u * width < end; ++u) {
            const int64_t first = std::max(begin, u * width);
            const int64_t past = std::min(end, u * width + across);
            const int64_t place = u * across + first - u * width;
            for (int64_t i = 0; first < past && i < count; ++i) {
              std::copy_n(sums + i * length + first - begin, past - first, to + i * result + place);
            }
          }
        }
      });
}

void conv_forward(KernelContext& context, View x, View weight, const TensorView* bias,
                  const SlidingWindows& windows, int64_t groups, View y) {
  if (y.numel() == 0) return;
  dispatch_floating(y.dtype, "conv_forward", [&]<class T>(TypeTag<T>) {
    const DirectConvolution<T> direct(context, x, weight.shape, windows, groups);
    if (windows.stride[0] == 1 && windows.stride[1] == 1 && !direct.fits()) {
      convolve_line<T>(context, x, weight, bias, windows, groups, y);
    } else {
      direct.forward(weight, bias, y.ptr<T>());
    }
  });
}

void conv_weight_gradient(KernelContext& context, View x, View g, const SlidingWindows& windows,
                          int64_t groups, View dw) {
  dispatch_floating(dw.dtype, "conv_weight_gradient", [&]<class T>(TypeTag<T>) {
    const DirectConvolution<T> direct(context, x, dw.shape, windows, groups);
    direct.weight_gradient(g.ptr<const T>(), dw.ptr<T>());
  });
}

#endif

}  // namespace

void register_conv() {
#if SASH_MICRO_KERNEL
  kernels::conv_forward.set(DeviceType::cpu, conv_forward);
  kernels::conv_weight_gradient.set(DeviceType::cpu, conv_weight_gradient);
#endif
}

}  // namespace sash::cpu
