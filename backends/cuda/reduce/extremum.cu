#include "../../../ops/kernels/reduce.h"
#include "reduce.cuh"

namespace sash::cuda {
namespace {

/// Maximum or minimum; NaN if there is one.
template <class T>
struct Extremum {
  using Accumulator = compute_t<T>;
  bool greatest;
  T* y;

  __device__ Accumulator identity() const {
    return greatest ? kLeast<Accumulator> : kMost<Accumulator>;
  }
  __device__ Accumulator of(Accumulator x, int64_t) const { return x; }
  __device__ Accumulator operator()(Accumulator a, Accumulator b) const {
    return a != a || (b == b && !(greatest ? b > a : b < a)) ? a : b;
  }
  __device__ void write(int64_t at, Accumulator a) const { y[at] = narrow<T>(a); }
};

template <bool kGreatest>
void extremum(KernelContext& context, View x, View y) {
  dispatch_device_numeric(x.dtype, kGreatest ? "amax" : "amin", [&]<class T>(TypeTag<T>) {
    reduce<T>(context, Extremum<T>{kGreatest, y.ptr<T>()}, x, y);
  });
}

template <class T>
struct Leader {
  T value;
  int64_t index;
};

template <class T>
__device__ Leader<T> shuffle_xor(Leader<T> x, int step) {
  return {__shfl_xor_sync(kAllLanes, x.value, step), __shfl_xor_sync(kAllLanes, x.index, step)};
}

/// The place of the greatest or the least element. NaN wins; ties take the lower place.
template <class T>
struct Lead {
  using Accumulator = Leader<compute_t<T>>;
  bool greatest;
  int64_t* y;

  __device__ Accumulator identity() const {
    using C = compute_t<T>;
    return {greatest ? kLeast<C> : kMost<C>, INT64_MAX};
  }
  __device__ Accumulator of(compute_t<T> x, int64_t place) const { return {x, place}; }
  __device__ Accumulator operator()(Accumulator a, Accumulator b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (a_nan || a.value == b.value) return a.index < b.index ? a : b;
    return (a.value > b.value) == greatest ? a : b;
  }
  __device__ void add(Accumulator& a, compute_t<T> x, int64_t place) const {
    const bool better = greatest ? x > a.value : x < a.value;
    if (better || (x != x && a.value == a.value)) a = {x, place};
  }
  /// Where nothing is better than `identity`, all elements are equal.
  __device__ void write(int64_t at, Accumulator a) const {
    y[at] = a.index == INT64_MAX ? 0 : a.index;
  }
};

template <bool kGreatest>
void arg_extremum(KernelContext& context, View x, View y, int) {
  dispatch_device_numeric(x.dtype, kGreatest ? "argmax" : "argmin", [&]<class T>(TypeTag<T>) {
    reduce<T>(context, Lead<T>{kGreatest, y.ptr<int64_t>()}, x, y);
  });
}

/// Whether an element has a bit of `mask`; `every`: whether none has not.
template <class Word>
struct Truth {
  using Accumulator = int;
  Word mask;
  bool every;
  bool* y;

  __device__ int identity() const { return 0; }
  __device__ int of(Word x, int64_t) const { return ((x & mask) != 0) != every; }
  __device__ int operator()(int a, int b) const { return a | b; }
  __device__ void write(int64_t at, int found) const { y[at] = (found != 0) != every; }
};

template <bool kEvery>
void truth(KernelContext& context, View x, View y) {
  dispatch_words(x.dtype, [&]<class Word>(TypeTag<Word>) {
    constexpr Word all = std::numeric_limits<Word>::max();
    const Word mask = is_floating(x.dtype) ? static_cast<Word>(all >> 1) : all;  // -0 is 0
    const Truth<Word> truth{mask, kEvery, y.ptr<bool>()};
    reduce<Word, 16 / sizeof(Word)>(context, truth, x, y);
  });
}

}  // namespace

void register_extremum() {
  kernels::amax.set(DeviceType::cuda, extremum<true>);
  kernels::amin.set(DeviceType::cuda, extremum<false>);
}

void register_arg_extremum() {
  kernels::argmax.set(DeviceType::cuda, arg_extremum<true>);
  kernels::argmin.set(DeviceType::cuda, arg_extremum<false>);
}

void register_truth() {
  kernels::any.set(DeviceType::cuda, truth<false>);
  kernels::all.set(DeviceType::cuda, truth<true>);
}

}  // namespace sash::cuda
