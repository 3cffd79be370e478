#pragma once

#include <unsupported/Eigen/SpecialFunctions>

#include <cmath>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>

#include "../../../ops/kernels/elementwise.h"
#include "../norm/rows.h"
#include "elementwise.h"

/// The kernels of the table's rows. A formula runs on Eigen arrays, unless the row is listed here.
namespace sash::cpu {

/// Rows whose formula takes single elements, or whose function in Eigen is not exact: for example,
/// its square root of infinity is NaN.
using ByElement =
    op::List<op::Sign, op::Sqrt, op::Rsqrt, op::IsNan, op::IsFinite, op::IsInf, op::Pow, op::Atan2,
             op::Remainder, op::FloorDivide, op::ReluBackward, op::LeakyRelu, op::LeakyReluSlope>;

template <class Op>
inline constexpr bool kByElement = ByElement::has<Op> || op::CompareOps::has<Op>;
template <class Op, class T>
inline constexpr bool kByElement<op::WithScalar<Op, T>> = kByElement<Op>;
template <class T>
inline constexpr bool kByElement<op::Clamp<T>> = true;

/// out = f(x...) for one block; `out` may be the same memory as an operand.
template <class F>
void evaluate(F f, auto& out, const auto&... x) {
  out = f(x...);
}

template <class X>
void evaluate(op::Exp, auto& out, const X& x) {
  using T = typename X::Scalar;
  const T* const from = x.data();
  T* const to = out.data();
  for_lanes(out.size(),
            [&](int64_t i, auto lanes) { store(to + i, lanes, exact_exp(load(from + i, lanes))); });
}

/// In float32, Eigen's expm1 may be infinite a little before it has to be.
template <class X>
void evaluate(op::Expm1 f, auto& out, const X& x) {
  using T = typename X::Scalar;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  Eigen::Array<T, Eigen::Dynamic, 1> kept;
  if (out.data() == x.data()) kept = x;
  const T* const at = kept.size() > 0 ? kept.data() : x.data();
  out = f(x);
  int any = 0;
  for (Eigen::Index i = 0; i < out.size(); ++i) any |= out[i] == infinity;
  if (!any) return;
  for (Eigen::Index i = 0; i < out.size(); ++i) {
    if (out[i] == infinity) out[i] = f(at[i]);
  }
}

template <class X>
void evaluate(op::Relu, auto& out, const X& x) {
  using T = typename X::Scalar;
  const auto zero = Eigen::Array<T, Eigen::Dynamic, 1>::Constant(x.size(), T(0));
  out = x.binaryExpr(zero, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
}

template <class V, class X>
void evaluate(op::WithScalar<op::Elu, V> f, auto& out, const X& x) {
  using T = typename X::Scalar;
  const auto zero = Eigen::Array<T, Eigen::Dynamic, 1>::Constant(x.size(), T(0));
  out = x.binaryExpr(zero, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>()) +
        expm1(x.min(T(0))) * f.value;
}

template <class V, class X>
void evaluate(op::WithScalar<op::EluSlope, V> f, auto& out, const X& x) {
  using T = typename X::Scalar;
  T growth[kBlock];
  for (int64_t i = 0; i < x.size(); i += kBlock) {
    const int64_t count = std::min(kBlock, x.size() - i);
    BlockOut<T>(growth, count) = exp(x.segment(i, count).min(T(0))) * f.value;
    for (int64_t k = 0; k < count; ++k) out[i + k] = x[i + k] <= T(0) ? growth[k] : T(1);
  }
}

template <class X>
void evaluate(op::Softplus, auto& out, const X& x) {
  using T = typename X::Scalar;
  const auto zero = Eigen::Array<T, Eigen::Dynamic, 1>::Constant(x.size(), T(0));
  out = log1p(exp(-abs(x))) +
        x.binaryExpr(zero, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
}

template <class X>
void evaluate(op::Maximum, auto& out, const X& a, const X& b) {
  using T = typename X::Scalar;
  out = a.binaryExpr(b, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
}

template <class X>
void evaluate(op::Minimum, auto& out, const X& a, const X& b) {
  using T = typename X::Scalar;
  out = a.binaryExpr(b, Eigen::internal::scalar_min_op<T, T, Eigen::PropagateNaN>());
}

/// Rows that are computed in registers for halves. Other rows use float32 buffers in the L1 cache.
using InRegisters = op::List<op::Neg, op::Abs, op::Square, op::Reciprocal, op::Exp, op::Relu,
                             op::Add, op::Sub, op::Mul, op::Div, op::Maximum, op::Minimum>;

template <class Op>
inline constexpr bool kInRegisters = InRegisters::has<Op>;
template <class Op, class T>
inline constexpr bool kInRegisters<op::WithScalar<Op, T>> = kInRegisters<Op>;

template <class F>
Lanes<float> on_lanes(F f, const auto&... x) {
  return f(x...);
}
inline Lanes<float> on_lanes(op::Exp, const Lanes<float>& x) { return exact_exp(x); }
inline Lanes<float> on_lanes(op::Relu, const Lanes<float>& x) { return max_or_nan(x, 0.0F); }
inline Lanes<float> on_lanes(op::Maximum, const Lanes<float>& a, const Lanes<float>& b) {
  return max_or_nan(a, b);
}
inline Lanes<float> on_lanes(op::Minimum, const Lanes<float>& a, const Lanes<float>& b) {
  return min_or_nan(a, b);
}

/// The angle of (b, a) within 4 units in the last place. Other than the library's, it vectorises.
inline float fast_atan2(float a, float b) {
  const float p = std::abs(a), q = std::abs(b);
  const float low = p < q ? p : q, high = p < q ? q : p;
  const float quotient = low / high;
  // 0 / 0 is an axis, and infinity / infinity a diagonal.
  const float t = high == 0 ? 0 : low > std::numeric_limits<float>::max() ? 1 : quotient;
  const float s = t * t;
  float sum = 0.00282363896F;  // of a minimax polynomial for (atan(t) - t) / t^3
  sum = sum * s - 0.0159569029F;
  sum = sum * s + 0.0425049886F;
  sum = sum * s - 0.0748900920F;
  sum = sum * s + 0.106347933F;
  sum = sum * s - 0.142027363F;
  sum = sum * s + 0.199926957F;
  sum = sum * s - 0.333331019F;
  float angle = sum * s * t + t;
  constexpr float pi = std::numbers::pi_v<float>;
  angle = p > q ? pi / 2 - angle : angle;
  angle = std::signbit(b) ? pi - angle : angle;
  return a != a || b != b ? a + b : std::copysign(angle, a);
}

/// out = f(in...) for one block. Not inlined: float32 and both halves share the code.
template <class F, class Out, class... In>
[[gnu::noinline]] void compute(const F& f, int64_t n, Out* out, const In*... in) {
  if constexpr (std::is_same_v<F, op::Atan2> && std::is_same_v<Out, float>) {
    for (int64_t i = 0; i < n; ++i) out[i] = fast_atan2(in[i]...);
  } else if constexpr (kByElement<F>) {
    const F local = f;  // which no write to `out` can change, so that the loop vectorises
    for (int64_t i = 0; i < n; ++i) out[i] = local(in[i]...);
  } else {
    BlockOut<Out> result(out, n);
    evaluate(f, result, BlockIn<In>(in, n)...);
  }
}

/// The same of halves, in float32; the result may be bool.
template <class F, class Out, class... In>
[[gnu::noinline]] void compute_halves(const F& f, int64_t n, Out* out, const In*... in) {
  if constexpr (kInRegisters<F>) {
    for_lanes(n, [&](int64_t i, auto lanes) {
      store(out + i, lanes, on_lanes(f, load(in + i, lanes)...));
    });
  } else {
    float wide[sizeof...(In)][kBlock];
    for (int64_t i = 0; i < n; i += kBlock) {
      const int64_t count = std::min(kBlock, n - i);
      float* next = wide[0];
      const auto widened_part = [&](const auto* from) {
        float* const to = std::exchange(next, next + kBlock);
        widen(from + i, count, to);
        return to;
      };
      const std::tuple parts{widened_part(in)...};
      const auto run_part = [&](auto* to) {
        std::apply([&](const auto*... part) { compute(f, count, to, part...); }, parts);
      };
      if constexpr (kIsHalf<Out>) {
        run_part(wide[0]);
        narrow(wide[0], count, out + i);
      } else {
        run_part(out + i);
      }
    }
  }
}

/// y = f(x...), with elements of the types `Out` and `In`.
template <class Out, class... In, class F, class... Views>
void run(F f, View y, const Views&... x) {
  for_each_block<Out, In...>(
      Order::memory,
      [f](int64_t, int64_t n, Out* out, const In*... in) {
        if constexpr ((kIsHalf<In> || ...)) {
          compute_halves(f, n, out, in...);
        } else {
          compute(f, n, out, in...);
        }
      },
      y, x...);
}

/// Calls `f` with the element type of a row's operands.
template <class Op, class F>
void dispatch(DType dtype, F&& f) {
  constexpr op::UnaryRow row{Op::row.name, Op::row.dtypes};
  if constexpr (row.dtypes == op::Dtypes::all) {
    dispatch_all(dtype, row.name, f);
  } else if constexpr (row.dtypes == op::Dtypes::boolean) {
    f(TypeTag<bool>{});
  } else if constexpr (row.dtypes == op::Dtypes::numbers) {
    sash::detail::dispatch_over<float, double, float16, bfloat16, int64_t, int32_t>(dtype, row.name,
                                                                                    f);
  } else if constexpr (row.dtypes == op::Dtypes::floating_or_int64) {
    sash::detail::dispatch_over<float, double, float16, bfloat16, int64_t>(dtype, row.name, f);
  } else {
    dispatch_with_halves(dtype, row.name, f);
  }
}

template <class Op>
void unary(KernelContext&, View x, View y) {
  dispatch<Op>(x.dtype, [&]<class T>(TypeTag<T>) { run<op::result_t<Op, T>, T>(Op{}, y, x); });
}

template <class Op>
void binary(KernelContext&, View a, View b, View y) {
  dispatch<Op>(a.dtype,
               [&]<class T>(TypeTag<T>) { run<op::result_t<Op, T>, T, T>(Op{}, y, a, b); });
}

template <class Op>
void scalar(KernelContext&, View x, View y, const Scalar& value) {
  dispatch<Op>(x.dtype, [&]<class T>(TypeTag<T>) {
    // Elements are compared with a value of their dtype, integers with the exact one.
    using Compared = std::conditional_t<std::is_integral_v<T>, int64_t, T>;
    using Stored = std::conditional_t<op::is_predicate<Op>(), Compared, compute_t<T>>;
    using V = compute_t<Stored>;
    const auto other = static_cast<V>(value.to<Stored>());
    run<op::result_t<Op, T>, T>(op::WithScalar<Op, V>{other}, y, x);
  });
}

}  // namespace sash::cpu
