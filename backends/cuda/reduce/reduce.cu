#include "../../../ops/kernels/reduce.h"

#include <array>
#include <optional>

#include "../../../tensor/kernels/gradients.h"

#include "../norm/column_sums.cuh"
#include "reduce.cuh"

namespace sash::cuda {
namespace {

/// float32 is summed and multiplied in float64, as on the CPU, for accuracy over many elements.
template <class T>
using wide_t =
    std::conditional_t<std::is_integral_v<T>, int64_t,
                       std::conditional_t<std::is_same_v<T, float>, double, compute_t<T>>>;
template <class T>
using sum_t = std::conditional_t<std::is_integral_v<T>, int64_t, T>;

template <class T, class Y = sum_t<T>>
struct Sum {
  using Accumulator = wide_t<T>;
  Y* y;

  __device__ Accumulator identity() const { return 0; }
  __device__ Accumulator of(compute_t<T> x, int64_t) const { return static_cast<Accumulator>(x); }
  __device__ Accumulator operator()(Accumulator a, Accumulator b) const { return a + b; }
  __device__ void write(int64_t at, Accumulator a) const { y[at] = static_cast<Y>(a); }
};

template <class T>
struct Product : Sum<T> {
  using A = wide_t<T>;
  __device__ A identity() const { return 1; }
  __device__ A operator()(A a, A b) const { return a * b; }
};

/// sqrt(sum x^2).
template <class T>
struct Length : Sum<T> {
  using A = wide_t<T>;
  __device__ A of(compute_t<T> x, int64_t) const { return static_cast<A>(x) * static_cast<A>(x); }
  __device__ void write(int64_t at, A a) const { this->y[at] = static_cast<T>(std::sqrt(a)); }
};

/// The elements of a matrix, for `sum_columns`.
template <class T>
struct Elements {
  using A = wide_t<T>;
  static constexpr int kAhead = 4, kOutputs = 1;
  const T* x;

  template <int V>
  __device__ Vector<T, V> load(int64_t at, int64_t) const {
    return *reinterpret_cast<const Vector<T, V>*>(x + at);
  }
  template <int V>
  __device__ auto use(const Vector<T, V>& loaded, int64_t) const {
    return widened(loaded);
  }
};

/// The rows and columns of x if it is a contiguous matrix, once axes are merged, whose rows y sums.
std::optional<std::array<int64_t, 2>> summed_rows(View x, View y) {
  const detail::ReductionPlan plan(x, y);
  const Walk<2>& kept = plan.kept;
  const Walk<1>& reduced = plan.reduced;
  const int64_t n = kept.count;
  const bool rows = plan.by_columns() && kept.rank == 1 && kept.stride[0][0] == 1 &&
                    kept.stride[1][0] == 1 && reduced.rank == 1 && reduced.stride[0][0] == n;
  if (!rows) return std::nullopt;
  return {{reduced.count, n}};
}

template <class T, class Y>
void sum_to(KernelContext& context, View x, View y) {
  if constexpr (!std::is_integral_v<T>) {
    if (y.numel() > 0) {
      if (const auto shape = summed_rows(x, y)) {
        const auto [rows, n] = *shape;
        return sum_columns(context, Elements<T>{x.ptr<T>()}, rows, n, y.ptr<Y>(), {x.data});
      }
    }
  }
  reduce<T>(context, Sum<T, Y>{y.ptr<Y>()}, x, y);
}

void sum(KernelContext& context, View x, View y) {
  sash::detail::dispatch_over<float, double, float16, bfloat16, int64_t, int32_t, uint8_t, bool>(
      x.dtype, "sum", [&]<class S>(TypeTag<S>) {
        using T = device_t<S>;
        if constexpr (kIsHalf<T>) {
          if (y.dtype == DType::float32) return sum_to<T, float>(context, x, y);
        }
        sum_to<T, sum_t<T>>(context, x, y);
      });
}

template <template <class> class R>
void real(KernelContext& context, View x, View y) {
  dispatch_floating(x.dtype, "reduce",
                    [&]<class T>(TypeTag<T>) { reduce<T>(context, R<T>{{y.ptr<T>()}}, x, y); });
}

}  // namespace

void register_reduce() {
  kernels::sum.set(DeviceType::cuda, sum);
  kernels::prod.set(DeviceType::cuda, real<Product>);
  kernels::length.set(DeviceType::cuda, real<Length>);
}

}  // namespace sash::cuda
