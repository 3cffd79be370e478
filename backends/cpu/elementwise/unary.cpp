#include "../../../ops/kernels/elementwise.h"

#include <cmath>
#include <limits>
#include <unsupported/Eigen/SpecialFunctions>

#include "../../../core/dispatch.h"
#include "elementwise.h"

namespace sash::cpu {
namespace {

template <class X>
using Element = typename X::Scalar;

// Each function writes a block; `out` may be the same memory as `x`.

struct Neg {
  static constexpr const char* name = "neg";
  static void apply(auto& out, const auto& x) { out = -x; }
};
struct Abs {
  static constexpr const char* name = "abs";
  static void apply(auto& out, const auto& x) { out = x.abs(); }
};
struct Sign {
  static constexpr const char* name = "sign";
  template <class X>
  static void apply(auto& out, const X& x) {
    using T = Element<X>;
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      const T v = x[i];
      out[i] = v != v ? v : static_cast<T>(static_cast<int>(v > T(0)) - static_cast<int>(v < T(0)));
    }
  }
};
struct Square {
  static constexpr const char* name = "square";
  static void apply(auto& out, const auto& x) { out = x * x; }
};

/// Eigen's exp stops at a subnormal number for x far below 0; there the result is 0.
template <class X>
void exp_block(auto& out, const X& x) {
  using T = Element<X>;
  out = x.exp();
  for (Eigen::Index i = 0; i < out.size(); ++i) {
    out[i] = out[i] < std::numeric_limits<T>::min() ? T(0) : out[i];
  }
}

struct Exp {
  static constexpr const char* name = "exp";
  static void apply(auto& out, const auto& x) { exp_block(out, x); }
};
struct Log {
  static constexpr const char* name = "log";
  static void apply(auto& out, const auto& x) { out = x.log(); }
};
struct Log1p {
  static constexpr const char* name = "log1p";
  static void apply(auto& out, const auto& x) { out = x.log1p(); }
};
struct Expm1 {
  static constexpr const char* name = "expm1";
  static void apply(auto& out, const auto& x) { out = x.expm1(); }
};
// Eigen's fast square root makes NaN of infinity, and its logistic loses digits below -8.
struct Sqrt {
  static constexpr const char* name = "sqrt";
  static void apply(auto& out, const auto& x) {
    for (Eigen::Index i = 0; i < x.size(); ++i) out[i] = std::sqrt(x[i]);
  }
};
struct Rsqrt {
  static constexpr const char* name = "rsqrt";
  static void apply(auto& out, const auto& x) {
    for (Eigen::Index i = 0; i < x.size(); ++i) out[i] = 1 / std::sqrt(x[i]);
  }
};
struct Reciprocal {
  static constexpr const char* name = "reciprocal";
  static void apply(auto& out, const auto& x) { out = x.inverse(); }
};
struct Sin {
  static constexpr const char* name = "sin";
  static void apply(auto& out, const auto& x) { out = x.sin(); }
};
struct Cos {
  static constexpr const char* name = "cos";
  static void apply(auto& out, const auto& x) { out = x.cos(); }
};
struct Tanh {
  static constexpr const char* name = "tanh";
  static void apply(auto& out, const auto& x) { out = x.tanh(); }
};
struct Sigmoid {
  static constexpr const char* name = "sigmoid";
  template <class X>
  static void apply(auto& out, const X& x) {
    out = ((-x).exp() + Element<X>(1)).inverse();
  }
};
struct Erf {
  static constexpr const char* name = "erf";
  static void apply(auto& out, const auto& x) { out = x.erf(); }
};
struct Relu {
  static constexpr const char* name = "relu";
  template <class X>
  static void apply(auto& out, const X& x) {
    using T = Element<X>;
    const auto zero = Eigen::Array<T, Eigen::Dynamic, 1>::Constant(x.size(), T(0));
    out = x.binaryExpr(zero, Eigen::internal::scalar_max_op<T, T, Eigen::PropagateNaN>());
  }
};
struct Silu {
  static constexpr const char* name = "silu";
  template <class X>
  static void apply(auto& out, const X& x) {
    out = x / ((-x).exp() + Element<X>(1));
  }
};
struct Floor {
  static constexpr const char* name = "floor";
  static void apply(auto& out, const auto& x) { out = x.floor(); }
};

template <class Function, class T>
void run(const TensorView& x, const TensorView& y) {
  elementwise<T, T>([](auto out, auto in) { Function::apply(out, in); }, y, x);
}

template <class Function>
void floating(KernelContext&, const TensorView& x, const TensorView& y) {
  dispatch_floating(y.dtype, Function::name, [&]<class T>(TypeTag<T>) { run<Function, T>(x, y); });
}

template <class Function>
void numeric(KernelContext&, const TensorView& x, const TensorView& y) {
  dispatch_numeric(y.dtype, Function::name, [&]<class T>(TypeTag<T>) { run<Function, T>(x, y); });
}

void add_scalar(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& value) {
  dispatch_numeric(y.dtype, "add", [&]<class T>(TypeTag<T>) {
    elementwise<T, T>([v = value.to<T>()](auto out, auto in) { out = in + v; }, y, x);
  });
}

void mul_scalar(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& value) {
  dispatch_numeric(y.dtype, "mul", [&]<class T>(TypeTag<T>) {
    elementwise<T, T>([v = value.to<T>()](auto out, auto in) { out = in * v; }, y, x);
  });
}

void div_scalar(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& value) {
  dispatch_floating(y.dtype, "div", [&]<class T>(TypeTag<T>) {
    elementwise<T, T>([v = value.to<T>()](auto out, auto in) { out = in / v; }, y, x);
  });
}

void pow_scalar(KernelContext& context, const TensorView& x, const TensorView& y,
                const Scalar& value) {
  const double exponent = value.to_double();
  if (exponent == 2) return floating<Square>(context, x, y);
  if (exponent == 0.5) return floating<Sqrt>(context, x, y);
  if (exponent == -1) return floating<Reciprocal>(context, x, y);
  dispatch_floating(y.dtype, "pow", [&]<class T>(TypeTag<T>) {
    const T p = static_cast<T>(exponent);
    elementwise<T, T>(
        [p](auto out, auto in) {
          if (p == T(1)) {
            out = in;
            return;
          }
          if (p == T(3)) {
            out = in * in * in;
            return;
          }
          for (Eigen::Index i = 0; i < in.size(); ++i) out[i] = std::pow(in[i], p);
        },
        y, x);
  });
}

void clamp(KernelContext&, const TensorView& x, const TensorView& y, const Scalar& low,
           const Scalar& high) {
  dispatch_numeric(y.dtype, "clamp", [&]<class T>(TypeTag<T>) {
    const T from = low.to<T>(), to = high.to<T>();
    for_each_block<T, T>(
        Order::memory,
        [from, to](int64_t, int64_t n, T* out, const T* in) {
          for (int64_t i = 0; i < n; ++i) {
            const T above = in[i] < from ? from : in[i];
            out[i] = above > to ? to : above;
          }
        },
        y, x);
  });
}

void relu_backward(KernelContext&, const TensorView& g, const TensorView& y,
                   const TensorView& out) {
  dispatch_floating(out.dtype, "relu", [&]<class T>(TypeTag<T>) {
    for_each_block<T, T, T>(
        Order::memory,
        [](int64_t, int64_t n, T* to, const T* grad, const T* value) {
          for (int64_t i = 0; i < n; ++i) {
            const T kept = grad[i];
            to[i] = value[i] <= T(0) ? T(0) : kept;
          }
        },
        out, g, y);
  });
}

}  // namespace

void register_unary() {
  constexpr auto cpu = DeviceType::cpu;
  kernels::neg.set(cpu, numeric<Neg>);
  kernels::abs.set(cpu, numeric<Abs>);
  kernels::sign.set(cpu, numeric<Sign>);
  kernels::square.set(cpu, numeric<Square>);
  kernels::add_scalar.set(cpu, add_scalar);
  kernels::mul_scalar.set(cpu, mul_scalar);
  kernels::clamp.set(cpu, clamp);
  kernels::exp.set(cpu, floating<Exp>);
  kernels::log.set(cpu, floating<Log>);
  kernels::log1p.set(cpu, floating<Log1p>);
  kernels::expm1.set(cpu, floating<Expm1>);
  kernels::sqrt.set(cpu, floating<Sqrt>);
  kernels::rsqrt.set(cpu, floating<Rsqrt>);
  kernels::reciprocal.set(cpu, floating<Reciprocal>);
  kernels::sin.set(cpu, floating<Sin>);
  kernels::cos.set(cpu, floating<Cos>);
  kernels::tanh.set(cpu, floating<Tanh>);
  kernels::sigmoid.set(cpu, floating<Sigmoid>);
  kernels::erf.set(cpu, floating<Erf>);
  kernels::relu.set(cpu, floating<Relu>);
  kernels::silu.set(cpu, floating<Silu>);
  kernels::floor.set(cpu, floating<Floor>);
  kernels::div_scalar.set(cpu, div_scalar);
  kernels::pow_scalar.set(cpu, pow_scalar);
  kernels::relu_backward.set(cpu, relu_backward);
}

}  // namespace sash::cpu
