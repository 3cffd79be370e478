#pragma once

#include <type_traits>

#include "../../../core/backend/dispatch.h"
#include "../../../core/scalar.h"
#include "strided.cuh"

/// float16 and bfloat16 are storage types: kernels compute in float32 and round each result once.
namespace sash::cuda {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

/// What elements of the device type `T` are computed in.
template <class T>
using compute_t = std::conditional_t<kIsHalf<T>, float, T>;

template <class T>
__device__ compute_t<T> widen(T x) {
  return static_cast<compute_t<T>>(x);
}

template <class T>
__device__ T narrow(compute_t<T> x) {
  return static_cast<T>(x);
}

/// Calls `f` with widened arguments and narrows its result.
template <class Out, class F>
struct Computed {
  F f;
  __device__ Out operator()(auto... x) const { return narrow<Out>(f(widen(x)...)); }
};

/// `elementwise` for an `f` that takes and returns the compute types of `Out` and `In`.
template <class Out, class... In, class F, class... Views>
void compute(const KernelContext& context, F f, View y, const Views&... x) {
  elementwise<Out, In...>(context, Computed<device_t<Out>, F>{f}, y, x...);
}

/// The type of a scalar in arithmetic with elements of the storage type `T`. The scalar is not
/// rounded to a half.
template <class T>
using operand_t = compute_t<device_t<T>>;
template <class T>
operand_t<T> operand(const Scalar& value) {
  return value.to<operand_t<T>>();
}

/// Every floating type, the halves included.
template <class F>
void dispatch_any_floating(DType dtype, const char* op, F&& f) {
  sash::detail::dispatch_over<float, double, float16, bfloat16>(dtype, op, f);
}

/// Every floating type, int32 and int64.
template <class F>
void dispatch_any_numeric(DType dtype, const char* op, F&& f) {
  sash::detail::dispatch_over<float, double, int64_t, int32_t, float16, bfloat16>(dtype, op, f);
}

/// The same, with the types that device code uses.
template <class F>
void dispatch_device_floating(DType dtype, const char* op, F&& f) {
  dispatch_any_floating(dtype, op, [&]<class S>(TypeTag<S>) { f(TypeTag<device_t<S>>{}); });
}
template <class F>
void dispatch_device_numeric(DType dtype, const char* op, F&& f) {
  dispatch_any_numeric(dtype, op, [&]<class S>(TypeTag<S>) { f(TypeTag<device_t<S>>{}); });
}
template <class F>
void dispatch_device_halves(DType dtype, const char* op, F&& f) {
  sash::detail::dispatch_over<float16, bfloat16>(
      dtype, op, [&]<class S>(TypeTag<S>) { f(TypeTag<device_t<S>>{}); });
}

}  // namespace sash::cuda
