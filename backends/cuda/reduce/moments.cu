#include "../../../ops/kernels/reduce.h"
#include "reduce.cuh"

namespace sash::cuda {
namespace {

/// Of `count` elements: their mean, and the sum of their squared distances from it.
template <class A>
struct Spread {
  A count, mean, squares;
};

template <class A>
__device__ Spread<A> shuffle_xor(Spread<A> x, int step) {
  return {__shfl_xor_sync(kAllLanes, x.count, step), __shfl_xor_sync(kAllLanes, x.mean, step),
          __shfl_xor_sync(kAllLanes, x.squares, step)};
}

/// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979.
template <class T>
struct Moments {
  using Accumulator = Spread<T>;
  T* var;
  T* mean;
  T divisor;

  __device__ Accumulator identity() const { return {0, 0, 0}; }
  __device__ Accumulator of(T x, int64_t) const { return {1, x, 0}; }
  __device__ Accumulator operator()(const Accumulator& a, const Accumulator& b) const {
    const T count = a.count + b.count, share = count > 0 ? b.count / count : T(0);
    const T apart = b.mean - a.mean;
    return {count, a.mean + apart * share,
            a.squares + b.squares + apart * apart * (a.count * share)};
  }
  __device__ void write(int64_t at, const Accumulator& all) const {
    var[at] = (all.squares + (all.mean - all.mean)) / divisor;  // NaN beside infinities
    if (mean) mean[at] = all.count > 0 ? all.mean : kNaN<T>;
  }
};

void var_mean(KernelContext& context, const TensorView& x, const TensorView& var,
              const TensorView& mean, double divisor) {
  dispatch_floating(x.dtype, "var", [&]<class T>(TypeTag<T>) {
    const Moments<T> moments{var.ptr<T>(), mean.ptr<T>(), static_cast<T>(divisor)};
    reduce<T>(context, moments, x, var);
  });
}

}  // namespace

void register_moments() { kernels::var_mean.set(DeviceType::cuda, var_mean); }

}  // namespace sash::cuda
