#include "../../../ops/kernels/reduce.h"

#include <array>
#include <optional>

#include "../../../tensor/kernels/gradients.h"

#include "column_sums.cuh"
#include "reduce.cuh"

namespace sash::cuda {
namespace {

/// The identity of a maximum (kSign > 0) or minimum.
template <class A, int kSign>
inline constexpr A kWorst = std::numeric_limits<A>::has_infinity
                                ? static_cast<A>(-kSign) * std::numeric_limits<A>::infinity()
                            : kSign > 0 ? std::numeric_limits<A>::lowest()
                                        : std::numeric_limits<A>::max();

struct Sum {
  static constexpr const char* name = "sum";
  /// float32 is summed in float64, as on the CPU, for accuracy over many elements.
  template <class T>
  using Accumulator =
      std::conditional_t<std::is_integral_v<T>, int64_t,
                         std::conditional_t<std::is_same_v<T, float>, double, compute_t<T>>>;

  template <class A>
  static __device__ A identity() {
    return A(0);
  }
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};

/// The elements of a matrix, for `sum_columns`.
template <class T>
struct Elements {
  using A = Sum::Accumulator<T>;
  static constexpr int kAhead = 4;
  const T* x;

  template <int V>
  __device__ Vector<T, V> load(int64_t at) const {
    return *reinterpret_cast<const Vector<T, V>*>(x + at);
  }
  template <int V>
  __device__ auto use(const Vector<T, V>& loaded, int64_t) const {
    return widened(loaded);
  }
};

/// The rows and columns of x if it is a contiguous matrix, once axes are merged, whose rows y sums.
std::optional<std::array<int64_t, 2>> summed_rows(const TensorView& x, const TensorView& y) {
  const detail::ReductionPlan plan(x, y);
  const Walk<2>& kept = plan.kept;
  const Walk<1>& reduced = plan.reduced;
  const int64_t n = kept.count;
  const bool rows = plan.by_columns() && kept.rank == 1 && kept.stride[0][0] == 1 &&
                    kept.stride[1][0] == 1 && reduced.rank == 1 && reduced.stride[0][0] == n;
  if (!rows) return std::nullopt;
  return {{reduced.count, n}};
}

/// Maximum (kSign > 0) or minimum; NaN if there is one.
template <int kSign>
struct Extremum {
  static constexpr const char* name = kSign > 0 ? "amax" : "amin";
  template <class T>
  using Accumulator = compute_t<T>;

  template <class A>
  static __device__ A identity() {
    return kWorst<A, kSign>;
  }
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a != a || (b == b && !(kSign > 0 ? b > a : b < a)) ? a : b;
  }
};

void sum(KernelContext& context, const TensorView& x, const TensorView& y) {
  sash::detail::dispatch_over<float, double, float16, bfloat16, int64_t, int32_t, uint8_t, bool>(
      x.dtype, Sum::name, [&]<class S>(TypeTag<S>) {
        using T = device_t<S>;
        using Out = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
        if constexpr (!std::is_integral_v<T>) {
          if (y.numel() > 0) {
            if (const auto shape = summed_rows(x, y)) {
              const auto [rows, n] = *shape;
              return sum_columns(context, Elements<T>{x.ptr<T>()}, rows, n, y.ptr<T>(), {x.data});
            }
          }
        }
        reduce<Sum, T, Out>(context, x, y);
      });
}

template <int kSign>
void extremum(KernelContext& context, const TensorView& x, const TensorView& y) {
  using R = Extremum<kSign>;
  dispatch_any_numeric(x.dtype, R::name, [&]<class S>(TypeTag<S>) {
    reduce<R, device_t<S>, device_t<S>>(context, x, y);
  });
}

}  // namespace

void register_reduce() {
  kernels::sum.set(DeviceType::cuda, sum);
  kernels::amax.set(DeviceType::cuda, extremum<1>);
  kernels::amin.set(DeviceType::cuda, extremum<-1>);
}

}  // namespace sash::cuda
