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
void extremum(KernelContext& context, const TensorView& x, const TensorView& y) {
  dispatch_any_numeric(x.dtype, kGreatest ? "amax" : "amin", [&]<class S>(TypeTag<S>) {
    using T = device_t<S>;
    reduce<T>(context, Extremum<T>{kGreatest, y.ptr<T>()}, x, y);
  });
}

}  // namespace

void register_extremum() {
  kernels::amax.set(DeviceType::cuda, extremum<true>);
  kernels::amin.set(DeviceType::cuda, extremum<false>);
}

}  // namespace sash::cuda
