#include <algorithm>
#include <vector>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../../../ops/kernels/conv.h"
#include "../linalg/packed_product.h"

/// Convolutions as products of the weights with windows, which are written as the packed panels
/// that the product reads.
namespace sash::cpu {
namespace {

#if SASH_MICRO_KERNEL

using kernels::SlidingWindows;

// x with its padding, [N, C, stride, H, W]: columns 0, stride, 2 stride ... come first, then
// columns 1, 1 + stride ..., so that neighbouring windows read neighbouring elements.
template <class T>
class PaddedPlanes {
 public:
  PaddedPlanes(const KernelContext& context, View x, const SlidingWindows& windows)
      : phases_(windows.stride[1]),
        height_(x.shape[2] + 2 * windows.padding[0]),
        width_(pieces(x.shape[3] + 2 * windows.padding[1], phases_)),
        channels_(x.shape[1]),
        memory_(context, (x.shape[0] * channels_ * plane() + kPast) * int64_t{sizeof(T)}) {
    const int64_t top = windows.padding[0], left = windows.padding[1];
    parallel_for_each(x.shape[0] * channels_, 16384 / std::max<int64_t>(plane(), 1),
                      [&](int64_t number) {
                        T* const to = memory_.ptr<T>() + number * plane();
                        std::fill_n(to, plane(), T(0));
                        const T* from = x.ptr<const T>() + number / channels_ * x.strides[0] +
                                        number % channels_ * x.strides[1];
                        for (int64_t h = 0; h < x.shape[2]; ++h, from += x.strides[2]) {
                          for (int64_t phase = 0; phase < phases_; ++phase) {
                            const int64_t at = std::max<int64_t>(0, pieces(left - phase, phases_));
                            const int64_t first = at * phases_ + phase - left;
                            copy_line(from + first * x.strides[3], phases_ * x.strides[3],
                                      pieces(x.shape[3] - first, phases_),
                                      to + (phase * height_ + h + top) * width_ + at);
                          }
                        }
                      });
    std::fill_n(memory_.ptr<T>() + x.shape[0] * channels_ * plane(), kPast, T(0));
  }

  const T* data() const { return memory_.template ptr<const T>(); }
  // Where the element of a window lies that starts at row `h` and at multiple `v` of the stride.
  int64_t offset(int64_t n, int64_t c, int64_t h, int64_t v, int64_t column) const {
    const int64_t line = (column % phases_) * height_ + h;
    return (n * channels_ + c) * plane() + line * width_ + v + column / phases_;
  }

 private:
  static void copy_line(const T* from, int64_t step, int64_t count, T* to) {
    if (step == 1) {
      std::copy_n(from, count, to);
    } else if (step == 2) {  // a constant, for vectors
      for (int64_t i = 0; i < count; ++i) to[i] = from[2 * i];
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i * step];
    }
  }

  static constexpr int64_t kPast = 64;  // read past the end, and not used
  int64_t plane() const { return phases_ * height_ * width_; }

  int64_t phases_, height_, width_, channels_;
  Workspace memory_;
};

// A result [N, O, U, V] as a matrix per group, [O / groups, N U V].
template <class T>
void convolve(const KernelContext& context, View x, View weight, const TensorView* bias,
              const SlidingWindows& windows, int64_t groups, View y) {
  using Packed = PackedProduct<T>;
  constexpr int64_t kCols = MicroKernel<T>::kCols, kPacket = MicroKernel<T>::kPacket;
  const PaddedPlanes<T> planes(context, x, windows);
  const int64_t rows = y.shape[1] / groups, channels = weight.shape[1], across = y.shape[3];
  const int64_t positions = y.shape[2] * across, all = y.shape[0] * positions;
  const int64_t taps = windows.kernel[0] * windows.kernel[1], depth = channels * taps;
  std::vector<int64_t> tap;  // where the elements of the first window of a group lie
  std::vector<T> filters;    // contiguous
  for (int64_t k = 0; k < depth; ++k) {
    const int64_t i = k % taps / windows.kernel[1], j = k % windows.kernel[1];
    tap.push_back(planes.offset(0, k / taps, i * windows.dilation[0], 0, j * windows.dilation[1]));
  }
  const Strides& step = weight.strides;
  const T* all_filters = weight.ptr<const T>();
  if (!weight.is_contiguous()) {
    for (int64_t o = 0; o < weight.shape[0]; ++o) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t i = 0; i < windows.kernel[0]; ++i) {
          const T* const from = weight.ptr<const T>() + o * step[0] + c * step[1] + i * step[2];
          for (int64_t j = 0; j < windows.kernel[1]; ++j) filters.push_back(from[j * step[3]]);
        }
      }
    }
    all_filters = filters.data();
  }
  // A panel of so much depth stays in the L1 cache.
  constexpr int64_t kDepth = MicroKernel<T>::kDepth / 2;
  const int64_t block = even_piece(std::max<int64_t>(depth, 1), kDepth, kPacket),
                tiles = pieces(all, kCols);
  parallel_for_each(
      groups * tiles, 65536 / std::max<int64_t>(rows * kCols * depth, 1), [&](int64_t task) {
        const int64_t group = task / tiles, first = task % tiles * kCols;
        const int64_t count = std::min(kCols, all - first);
        const Workspace memory(
            context, (kCols * (block + rows) + kPacket) * static_cast<int64_t>(sizeof(T)));
        T* const result = memory.ptr<T>();
        T* const packed = result + rows * kCols;
        // Runs of neighbouring windows: from which column on, and where they start.
        struct Run {
          int64_t column, from;
        };
        std::vector<Run> runs;
        for (int64_t column = 0; column < count;) {
          const int64_t at = first + column, v = at % across;
          const int64_t from = planes.offset(at / positions, group * channels,
                                             at % positions / across * windows.stride[0], v, 0);
          runs.push_back({column, from});
          column += std::min({across - v, kPacket, kCols - column});
        }
        const auto panel = [&](int64_t k0, int64_t length) -> const T* {
          // Locals, which stores of vectors cannot change.
          const T* const elements = planes.data();
          const int64_t* const place = tap.data() + k0;
          const Run *const begin = runs.data(), *const end = begin + runs.size();
          T* to = packed;
          for (int64_t k = 0; k < length; ++k, to += kCols) {
            // Whole vectors: what one writes too much, the next one overwrites.
            for (const Run* run = begin; run < end; ++run) {
              MicroKernel<T>::copy(elements + place[k] + run->from, to + run->column);
            }
          }
          return packed;
        };
        for (int64_t o = 0; o < rows; ++o) {
          const T start = bias ? bias->ptr<const T>()[(group * rows + o) * bias->strides[0]] : T(0);
          std::fill_n(result + o * kCols, count, start);
        }
        const T* const left = all_filters + group * rows * depth;
        const Product<T> product{.m = rows,
                                 .n = count,
                                 .k = depth,
                                 .a = {left, depth, 1},
                                 .b = {nullptr, kCols, 1},
                                 .c = {result, kCols, 1},
                                 .beta = 1};
        Packed::run(context, product, block, 0, rows, panel);
        for (int64_t o = 0; o < rows; ++o) {
          for (int64_t column = 0; column < count;) {
            const int64_t n = (first + column) / positions, at = (first + column) % positions;
            const int64_t length = std::min(positions - at, count - column);
            std::copy_n(result + o * kCols + column, length,
                        y.ptr<T>() + (n * y.shape[1] + group * rows + o) * positions + at);
            column += length;
          }
        }
      });
}

void conv_forward(KernelContext& context, View x, View weight, const TensorView* bias,
                  const SlidingWindows& windows, int64_t groups, View y) {
  if (y.numel() == 0) return;
  dispatch_floating(y.dtype, "conv_forward", [&]<class T>(TypeTag<T>) {
    convolve<T>(context, x, weight, bias, windows, groups, y);
  });
}

#endif

}  // namespace

void register_conv() {
#if SASH_MICRO_KERNEL
  kernels::conv_forward.set(DeviceType::cpu, conv_forward);
#endif
}

}  // namespace sash::cpu
