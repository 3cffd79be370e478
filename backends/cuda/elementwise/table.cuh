#pragma once

#include "../../../ops/kernels/elementwise.h"
#include "compute.cuh"

/// The kernels of the rows of `elementwise_table.h`.
namespace sash::cuda {

/// Calls `f` with the storage type of a row's operands.
template <class Op, class F>
void dispatch(DType dtype, F&& f) {
  if constexpr (Op::row.dtypes == op::Dtypes::all) {
    dispatch_all(dtype, Op::row.name, f);
  } else if constexpr (Op::row.dtypes == op::Dtypes::boolean) {
    f(TypeTag<bool>{});
  } else if constexpr (Op::row.dtypes == op::Dtypes::numbers) {
    dispatch_any_numeric(dtype, Op::row.name, f);
  } else if constexpr (Op::row.dtypes == op::Dtypes::floating_or_int64) {
    sash::detail::dispatch_over<float, double, float16, bfloat16, int64_t>(dtype, Op::row.name, f);
  } else {
    dispatch_any_floating(dtype, Op::row.name, f);
  }
}

/// One instruction, where the row divides.
struct FastRsqrt {
  __device__ auto operator()(auto x) const { return ::rsqrt(x); }
};

template <class Op>
void unary(KernelContext& context, View x, View y) {
  using F = std::conditional_t<std::is_same_v<Op, op::Rsqrt>, FastRsqrt, Op>;
  dispatch<Op>(x.dtype,
               [&]<class T>(TypeTag<T>) { compute<op::result_t<Op, T>, T>(context, F{}, y, x); });
}

template <class Op>
void binary(KernelContext& context, View a, View b, View y) {
  dispatch<Op>(a.dtype, [&]<class T>(TypeTag<T>) {
    compute<op::result_t<Op, T>, T, T>(context, Op{}, y, a, b);
  });
}

/// In a comparison with floating elements, the scalar is first rounded to their dtype, so that 0.1
/// equals a half that was made from 0.1. In a comparison with integers it becomes int64. In
/// arithmetic it is not rounded to a half.
template <class Op>
void scalar(KernelContext& context, View x, View y, const Scalar& value) {
  dispatch<Op>(x.dtype, [&]<class T>(TypeTag<T>) {
    constexpr bool compares = op::is_predicate<Op>();
    using V = std::conditional_t<compares && std::is_integral_v<T>, int64_t, operand_t<T>>;
    V other;
    if constexpr (compares && !std::is_integral_v<T>) {
      other = static_cast<V>(value.to<T>());
    } else {
      other = value.to<V>();
    }
    compute<op::result_t<Op, T>, T>(context, op::WithScalar<Op, V>{other}, y, x);
  });
}

}  // namespace sash::cuda
