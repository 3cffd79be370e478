#include "../../../ops/kernels/reduce.h"
#include "reduce.cuh"

namespace sash::cuda {
namespace {

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
void arg_extremum(KernelContext& context, const TensorView& x, const TensorView& y, int) {
  dispatch_any_numeric(x.dtype, kGreatest ? "argmax" : "argmin", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    reduce<T>(context, Lead<T>{kGreatest, y.ptr<int64_t>()}, x, y);
  });
}

}  // namespace

void register_arg_extremum() {
  kernels::argmax.set(DeviceType::cuda, arg_extremum<true>);
  kernels::argmin.set(DeviceType::cuda, arg_extremum<false>);
}

}  // namespace sash::cuda
