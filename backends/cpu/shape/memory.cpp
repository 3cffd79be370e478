#include "../../../tensor/kernels/memory.h"

#include <cstdlib>
#include <cstring>

#include "../../../core/backend/dispatch.h"
#include "../../../tensor/kernels/gradients.h"
#include "../elementwise/elementwise.h"
#include "../norm/rows.h"
#include "convert.h"

namespace sash::cpu {
namespace {

void fill(KernelContext&, View y, const Scalar& value) {
  dispatch_all(y.dtype, "fill", [&]<class T>(TypeTag<T>) {
    const T element = value.to<T>();
    for_each_block<T>(
        Order::memory, [element](int64_t, int64_t n, T* out) { std::fill_n(out, n, element); }, y);
  });
}

constexpr int64_t kTile = 32;

/// The axis with the smallest stride in x, if that is not the walk's innermost axis (smallest
/// stride in y); else -1. Axes shorter than 8 do not count. Strides of x may be negative (`flip`).
int transposed_axis(const Walk<2>& walk) {
  const auto last = static_cast<size_t>(walk.rank - 1);
  int best = -1;
  int64_t least = std::abs(walk.stride[1][last]);
  for (size_t axis = 0; axis < last; ++axis) {
    const int64_t step = std::abs(walk.stride[1][axis]);
    if (step == 0 || step >= least || walk.extent[axis] < 8) continue;
    best = static_cast<int>(axis);
    least = step;
  }
  return walk.extent[last] < 8 ? -1 : best;
}

/// Copies rows x columns elements through a tile: reads in the order of x, writes in that of y.
template <class T>
void copy_tile(const T* x, const int64_t (&x_step)[2], T* y, const int64_t (&y_step)[2],
               int64_t rows, int64_t columns) {
  alignas(64) T tile[kTile][kTile];  // vectors that cross cache lines take half as long again
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) tile[c][r] = x[r * x_step[0] + c * x_step[1]];
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) y[r * y_step[0] + c * y_step[1]] = tile[c][r];
  }
}

/// Copies square tiles of `axis` and the innermost axis, so that reads and writes both use whole
/// cache lines. A task is one strip of tiles.
template <class T>
void copy_transposed(const Walk<2>& walk, int axis, const T* x, T* y) {
  const auto last = static_cast<size_t>(walk.rank - 1);
  const auto row = static_cast<size_t>(axis);
  const int64_t rows = walk.extent[row], columns = walk.extent[last];
  const int64_t strips = (rows + kTile - 1) / kTile;
  Steps outer = walk.extent;
  outer[row] = strips;
  outer[last] = 1;
  const int64_t tasks = walk.count / (rows * columns) * strips;
  const int64_t grain = std::max<int64_t>(1, kPiece / (kTile * columns));
  parallel_for_each(tasks, grain, [&](int64_t task) {
    Position at(outer, walk.rank, task);
    at.index[row] *= kTile;
    const T* from = x + at.offset(walk.stride[1], walk.rank);
    T* to = y + at.offset(walk.stride[0], walk.rank);
    const int64_t height = std::min(kTile, rows - at.index[row]);
    const int64_t x_step[2] = {walk.stride[1][row], walk.stride[1][last]};
    const int64_t y_step[2] = {walk.stride[0][row], walk.stride[0][last]};
    for (int64_t c = 0; c < columns; c += kTile) {
      copy_tile(from + c * x_step[1], x_step, to + c * y_step[1], y_step, height,
                std::min(kTile, columns - c));
    }
  });
}

/// Copy without a cast. T is the unsigned integer of the element size.
template <class T>
void copy_words(View x, View y) {
  const auto walk = make_walk<2>({&y, &x}, Order::memory);
  const int axis = transposed_axis(walk);
  if (axis >= 0) return copy_transposed(walk, axis, x.ptr<T>(), y.ptr<T>());
  parallel_for(walk.count, kPiece, [&](int64_t begin, int64_t end) {
    Operand<T> to(y, walk, 0), from(x, walk, 1);
    const int64_t step = to.linear() ? end - begin : kBlock;
    for (int64_t flat = begin; flat < end; flat += step) {
      const Position at(walk.extent, walk.rank, flat);
      const int64_t n = std::min(step, end - flat);
      T* block = to.linear() ? y.ptr<T>() + flat : to.buffer();
      if (from.linear()) {
        std::copy_n(x.ptr<T>() + flat, n, block);
      } else {
        from.gather(at, n, block);
      }
      if (!to.linear()) to.write(at, n);
    }
  });
}

template <class From, class To>
void copy_cast(View x, View y) {
  for_each_block<To, From>(
      Order::memory,
      [](int64_t, int64_t n, To* out, const From* in) {
        for (int64_t i = 0; i < n; ++i) out[i] = converted<To>(in[i]);
      },
      y, x);
}

// Between halves and float32, by vector instructions.
template <class Half>
void copy_half(View x, View y) {
  if (y.dtype == DType::float32) {
    for_each_block<float, Half>(
        Order::memory, [](int64_t, int64_t n, float* out, const Half* in) { widen(in, n, out); }, y,
        x);
  } else {
    for_each_block<Half, float>(
        Order::memory, [](int64_t, int64_t n, Half* out, const float* in) { narrow(in, n, out); },
        y, x);
  }
}

void copy(KernelContext&, View x, View y) {
  if (x.dtype != y.dtype) {
    const DType half = is_half(x.dtype) ? x.dtype : y.dtype;
    const DType other = is_half(x.dtype) ? y.dtype : x.dtype;
    if (other == DType::float32 && half == DType::float16) return copy_half<float16>(x, y);
    if (other == DType::float32 && half == DType::bfloat16) return copy_half<bfloat16>(x, y);
    dispatch_all(x.dtype, "copy", [&]<class From>(TypeTag<From>) {
      dispatch_all(y.dtype, "copy", [&]<class To>(TypeTag<To>) { copy_cast<From, To>(x, y); });
    });
    return;
  }
  dispatch_words(x.dtype, [&]<class Word>(TypeTag<Word>) { copy_words<Word>(x, y); });
}

void accumulate(KernelContext&, View a, View b, View y) {
  dispatch_with_halves(y.dtype, "accumulate", [&]<class T>(TypeTag<T>) {
    for_each_block<T, T, T>(
        Order::memory,
        [](int64_t, int64_t n, T* out, const T* p, const T* q) {
          for_lanes(n, [&](int64_t i, auto lanes) {
            store(out + i, lanes, load(p + i, lanes) + load(q + i, lanes));
          });
        },
        y, a, b);
  });
}

void arange(KernelContext&, View y, const Scalar& start, const Scalar& step) {
  const bool exact = start.is_integer() && step.is_integer();
  // Unsigned, because i step may overflow int64 although the sum does not.
  const auto counted = [&](int64_t i) {
    return static_cast<int64_t>(start.to<uint64_t>() +
                                static_cast<uint64_t>(i) * step.to<uint64_t>());
  };
  dispatch_all(y.dtype, "arange", [&]<class T>(TypeTag<T>) {
    for_each_block<T>(
        Order::row_major,
        [&](int64_t flat, int64_t n, T* out) {
          for (int64_t i = 0; i < n; ++i) {
            out[i] = exact ? converted<T>(counted(flat + i))
                           : converted<T>(start.to_double() +
                                          static_cast<double>(flat + i) * step.to_double());
          }
        },
        y);
  });
}

}  // namespace

void register_memory() {
  kernels::fill.set(DeviceType::cpu, fill);
  kernels::copy.set(DeviceType::cpu, copy);
  kernels::accumulate.set(DeviceType::cpu, accumulate);
  kernels::arange.set(DeviceType::cpu, arange);
}

}  // namespace sash::cpu
