#include "../../../ops/kernels/elementwise.h"

#include "compute.cuh"

namespace sash::cuda {
namespace {

struct Equal {
  __device__ bool operator()(auto a, auto b) const { return a == b; }
};
struct NotEqual {
  __device__ bool operator()(auto a, auto b) const { return a != b; }
};
struct Less {
  __device__ bool operator()(auto a, auto b) const { return a < b; }
};
struct LessEqual {
  __device__ bool operator()(auto a, auto b) const { return a <= b; }
};
struct Greater {
  __device__ bool operator()(auto a, auto b) const { return a > b; }
};
struct GreaterEqual {
  __device__ bool operator()(auto a, auto b) const { return a >= b; }
};
template <class Relation, class T>
struct With {
  T other;
  __device__ bool operator()(T x) const { return Relation{}(x, other); }
};

struct And {
  __device__ bool operator()(bool a, bool b) const { return a && b; }
};
struct Or {
  __device__ bool operator()(bool a, bool b) const { return a || b; }
};
struct Not {
  __device__ bool operator()(bool x) const { return !x; }
};
struct IsNan {
  __device__ bool operator()(auto x) const { return x != x; }
};

template <class Relation>
void compare(KernelContext& context, const TensorView& a, const TensorView& b,
             const TensorView& y) {
  dispatch_all(a.dtype, "compare",
               [&]<class T>(TypeTag<T>) { compute<bool, T, T>(context, Relation{}, y, a, b); });
}

/// The scalar takes a floating dtype first, so that 0.1 equals a half that was made from 0.1.
/// Integers are compared in int64, which holds the scalar too.
template <class Relation>
void compare_scalar(KernelContext& context, const TensorView& x, const TensorView& y,
                    const Scalar& value) {
  dispatch_all(x.dtype, "compare", [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_integral_v<T>) {
      compute<bool, T>(context, With<Relation, int64_t>{value.to<int64_t>()}, y, x);
    } else {
      const auto other = static_cast<operand_t<T>>(value.to<T>());
      compute<bool, T>(context, With<Relation, operand_t<T>>{other}, y, x);
    }
  });
}

template <class F>
void logical(KernelContext& context, const TensorView& a, const TensorView& b,
             const TensorView& y) {
  elementwise<bool, bool, bool>(context, F{}, y, a, b);
}

void logical_not(KernelContext& context, const TensorView& x, const TensorView& y) {
  elementwise<bool, bool>(context, Not{}, y, x);
}

void isnan(KernelContext& context, const TensorView& x, const TensorView& y) {
  dispatch_any_floating(x.dtype, "isnan",
                        [&]<class T>(TypeTag<T>) { compute<bool, T>(context, IsNan{}, y, x); });
}

}  // namespace

void register_compare() {
  constexpr auto cuda = DeviceType::cuda;
  kernels::eq.set(cuda, compare<Equal>);
  kernels::ne.set(cuda, compare<NotEqual>);
  kernels::lt.set(cuda, compare<Less>);
  kernels::le.set(cuda, compare<LessEqual>);
  kernels::gt.set(cuda, compare<Greater>);
  kernels::ge.set(cuda, compare<GreaterEqual>);
  kernels::eq_scalar.set(cuda, compare_scalar<Equal>);
  kernels::ne_scalar.set(cuda, compare_scalar<NotEqual>);
  kernels::lt_scalar.set(cuda, compare_scalar<Less>);
  kernels::le_scalar.set(cuda, compare_scalar<LessEqual>);
  kernels::gt_scalar.set(cuda, compare_scalar<Greater>);
  kernels::ge_scalar.set(cuda, compare_scalar<GreaterEqual>);
  kernels::logical_and.set(cuda, logical<And>);
  kernels::logical_or.set(cuda, logical<Or>);
  kernels::logical_not.set(cuda, logical_not);
  kernels::isnan.set(cuda, isnan);
}

}  // namespace sash::cuda
