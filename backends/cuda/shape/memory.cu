#include "../../../tensor/kernels/memory.h"

#include "../../../ops/kernels/elementwise_table.h"
#include "../../../tensor/kernels/gradients.h"
#include "../elementwise/compute.cuh"
#include "transposed_copy.cuh"

namespace sash::cuda {
namespace {

template <class To, class From>
__device__ To cast(From value) {
  if constexpr (kIsHalf<From>) {
    return cast<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (kIsHalf<To>) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class T>
struct Fill {
  T value;
  __device__ T operator()() const { return value; }
};

void fill(KernelContext& context, View y, const Scalar& value) {
  // One kernel per element size, not per dtype.
  const auto fill_words = [&]<class Word>(TypeTag<Word>, auto element) {
    elementwise<Word>(context, Fill<Word>{std::bit_cast<Word>(element)}, y);
  };
  dispatch_all(y.dtype, "fill", [&]<class T>(TypeTag<T>) {
    const T element = value.to<T>();
    if constexpr (sizeof(T) == 1) fill_words(TypeTag<uint8_t>{}, element);
    if constexpr (sizeof(T) == 2) fill_words(TypeTag<uint16_t>{}, element);
    if constexpr (sizeof(T) == 4) fill_words(TypeTag<uint32_t>{}, element);
    if constexpr (sizeof(T) == 8) fill_words(TypeTag<uint64_t>{}, element);
  });
}

template <class T>
struct Same {
  __device__ T operator()(T x) const { return x; }
};

template <class To, class From>
struct Cast {
  __device__ To operator()(From x) const { return cast<To>(x); }
};

void copy(KernelContext& context, View x, View y) {
  if (x.dtype != y.dtype) {
    dispatch_all(x.dtype, "copy", [&]<class From>(TypeTag<From>) {
      dispatch_all(y.dtype, "copy", [&]<class To>(TypeTag<To>) {
        elementwise<To, From>(context, Cast<device_t<To>, device_t<From>>{}, y, x);
      });
    });
    return;
  }
  dispatch_words(x.dtype, [&]<class Word>(TypeTag<Word>) {
    if (copy_transposed<Word>(context, x, y)) return;
    elementwise<Word, Word>(context, Same<Word>{}, y, x);
  });
}

void accumulate(KernelContext& context, View a, View b, View y) {
  dispatch_any_floating(y.dtype, "accumulate", [&]<class T>(TypeTag<T>) {
    compute<T, T, T>(context, op::Add{}, y, a, b);
  });
}

/// y[i] = start + i step, computed in `Number`: int64 if start and step are integers, else double.
template <class T, class Number>
__global__ void __launch_bounds__(kThreads)
    arange_kernel(const __grid_constant__ Walk<1> walk, T* y, Number start, Number step) {
  const int64_t i = thread_index();
  if (i >= walk.count) return;
  int64_t offset[1];
  walk.find(i, 1, offset);
  // Not fused to one rounding (fma), so that all backends give the same bits.
  if constexpr (std::is_same_v<Number, double>) {
    y[offset[0]] = cast<T>(__dadd_rn(start, __dmul_rn(static_cast<double>(i), step)));
  } else {
    // Unsigned, because i step may overflow int64 although the sum does not.
    const auto number =
        static_cast<uint64_t>(start) + static_cast<uint64_t>(i) * static_cast<uint64_t>(step);
    y[offset[0]] = cast<T>(static_cast<int64_t>(number));
  }
}

void arange(KernelContext& context, View y, const Scalar& start, const Scalar& step) {
  const Walk<1> walk = make_walk<1>({&y}, Order::row_major);
  if (walk.count == 0) return;
  const auto launch = [&]<class T, class Number>(T* data, Number first, Number by) {
    launch_kernel(context, blocks_for(walk.count), kThreads, 0, arange_kernel<T, Number>, walk,
                  data, first, by);
  };
  const bool exact = start.is_integer() && step.is_integer();
  dispatch_all(y.dtype, "arange", [&]<class T>(TypeTag<T>) {
    if (exact) {
      launch(y.ptr<device_t<T>>(), start.to<int64_t>(), step.to<int64_t>());
    } else {
      launch(y.ptr<device_t<T>>(), start.to_double(), step.to_double());
    }
  });
}

}  // namespace

void register_memory() {
  kernels::fill.set(DeviceType::cuda, fill);
  kernels::copy.set(DeviceType::cuda, copy);
  kernels::accumulate.set(DeviceType::cuda, accumulate);
  kernels::arange.set(DeviceType::cuda, arange);
}

}  // namespace sash::cuda
