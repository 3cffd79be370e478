#include "../../../ops/kernels/reduce.h"
#include "reduce.cuh"

namespace sash::cuda {
namespace {

/// Of `count` elements x: the sums of x - pivot and of (x - pivot)^2. The pivot is one of them (0
/// if that is infinite or NaN) or their mean, so that equal elements have sums of exactly 0.
struct Spread {
  double count, pivot, sum, squares;

  /// The same about their mean.
  __device__ Spread centred() const {
    if (count == 0) return *this;
    const double shift = sum / count, rest = squares - sum * shift;
    const bool held = squares != kInfinity<double>;
    return {count, pivot + shift, 0, !held ? squares : rest < 0 ? 0 : rest};
  }
};

__device__ Spread shuffle_xor(Spread x, int step) {
  return {__shfl_xor_sync(kAllLanes, x.count, step), __shfl_xor_sync(kAllLanes, x.pivot, step),
          __shfl_xor_sync(kAllLanes, x.sum, step), __shfl_xor_sync(kAllLanes, x.squares, step)};
}

/// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979. In float64: float32 does not hold the squares of large or small elements.
template <class T>
struct Moments {
  using Accumulator = Spread;
  T* var;
  T* mean;
  double divisor;
  bool root;

  __device__ Spread identity() const { return {0, 0, 0, 0}; }
  __device__ Spread of(T x, int64_t place) const {
    Spread one = identity();
    add(one, x, place);
    return one;
  }
  __device__ void add(Spread& all, T x, int64_t) const {
    const double wide = x;
    if (all.count == 0) all.pivot = isfinite(wide) ? wide : 0;
    const double apart = wide - all.pivot;
    all.count += 1;
    all.sum += apart;
    all.squares += apart * apart;
  }
  __device__ Spread operator()(const Spread& left, const Spread& right) const {
    if (right.count == 0) return left;
    if (left.count == 0) return right;
    const Spread a = left.centred(), b = right.centred();
    const double count = a.count + b.count, share = b.count / count, apart = b.pivot - a.pivot;
    return {count, a.pivot + apart * share, 0,
            a.squares + b.squares + apart * apart * (a.count * share)};
  }
  __device__ void write(int64_t at, const Spread& sums) const {
    const Spread all = sums.centred();
    const double middle = all.count > 0 ? all.pivot : kNaN<double>;
    const double value =
        (all.squares + (middle - middle)) / divisor;  // NaN if there are infinities
    var[at] = static_cast<T>(root ? ::sqrt(value) : value);
    if (mean) mean[at] = static_cast<T>(middle);
  }
};

void var_mean(KernelContext& context, View x, View var, View mean, double divisor, bool root) {
  dispatch_floating(x.dtype, "var", [&]<class T>(TypeTag<T>) {
    const Moments<T> moments{var.ptr<T>(), mean.ptr<T>(), divisor, root};
    reduce<T>(context, moments, x, var);
  });
}

}  // namespace

void register_moments() { kernels::var_mean.set(DeviceType::cuda, var_mean); }

}  // namespace sash::cuda
