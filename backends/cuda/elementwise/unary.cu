#include "../../../ops/kernels/elementwise.h"

#include <cmath>

#include "compute.cuh"

namespace sash::cuda {
namespace {

struct Neg {
  static constexpr const char* name = "neg";
  __device__ auto operator()(auto x) const { return -x; }
};
struct Abs {
  static constexpr const char* name = "abs";
  __device__ auto operator()(auto x) const { return std::abs(x); }
};
struct Sign {
  static constexpr const char* name = "sign";
  template <class T>
  __device__ T operator()(T x) const {
    return x != x ? x : static_cast<T>(static_cast<int>(x > T(0)) - static_cast<int>(x < T(0)));
  }
};
struct Square {
  static constexpr const char* name = "square";
  __device__ auto operator()(auto x) const { return x * x; }
};
struct Exp {
  static constexpr const char* name = "exp";
  __device__ auto operator()(auto x) const { return std::exp(x); }
};
struct Log {
  static constexpr const char* name = "log";
  __device__ auto operator()(auto x) const { return std::log(x); }
};
struct Log1p {
  static constexpr const char* name = "log1p";
  __device__ auto operator()(auto x) const { return std::log1p(x); }
};
struct Expm1 {
  static constexpr const char* name = "expm1";
  __device__ auto operator()(auto x) const { return std::expm1(x); }
};
struct Sqrt {
  static constexpr const char* name = "sqrt";
  __device__ auto operator()(auto x) const { return std::sqrt(x); }
};
struct Rsqrt {
  static constexpr const char* name = "rsqrt";
  __device__ auto operator()(auto x) const { return ::rsqrt(x); }
};
struct Reciprocal {
  static constexpr const char* name = "reciprocal";
  template <class T>
  __device__ T operator()(T x) const {
    return T(1) / x;
  }
};
struct Sin {
  static constexpr const char* name = "sin";
  __device__ auto operator()(auto x) const { return std::sin(x); }
};
struct Cos {
  static constexpr const char* name = "cos";
  __device__ auto operator()(auto x) const { return std::cos(x); }
};
struct Tanh {
  static constexpr const char* name = "tanh";
  __device__ auto operator()(auto x) const { return std::tanh(x); }
};
struct Sigmoid {
  static constexpr const char* name = "sigmoid";
  template <class T>
  __device__ T operator()(T x) const {
    return T(1) / (T(1) + std::exp(-x));
  }
};
struct Erf {
  static constexpr const char* name = "erf";
  __device__ auto operator()(auto x) const { return std::erf(x); }
};
struct Relu {
  static constexpr const char* name = "relu";
  template <class T>
  __device__ T operator()(T x) const {
    return x <= T(0) ? T(0) : x;
  }
};
struct Silu {
  static constexpr const char* name = "silu";
  template <class T>
  __device__ T operator()(T x) const {
    return x / (T(1) + std::exp(-x));
  }
};
struct Floor {
  static constexpr const char* name = "floor";
  __device__ auto operator()(auto x) const { return std::floor(x); }
};

struct Identity {
  static constexpr const char* name = "pow";
  __device__ auto operator()(auto x) const { return x; }
};
struct Cube {
  static constexpr const char* name = "pow";
  __device__ auto operator()(auto x) const { return x * x * x; }
};
template <class T>
struct Power {
  T exponent;
  __device__ T operator()(T x) const { return std::pow(x, exponent); }
};
template <class T>
struct AddScalar {
  T value;
  __device__ T operator()(T x) const { return x + value; }
};
template <class T>
struct MulScalar {
  T value;
  __device__ T operator()(T x) const { return x * value; }
};
template <class T>
struct DivScalar {
  T value;
  __device__ T operator()(T x) const { return x / value; }
};
template <class T>
struct Clamp {
  T low, high;
  __device__ T operator()(T x) const {
    const T above = x < low ? low : x;
    return above > high ? high : above;
  }
};
struct ReluBackward {
  template <class T>
  __device__ T operator()(T g, T y) const {
    return y <= T(0) ? T(0) : g;
  }
};

template <class F>
void floating(KernelContext& context, const TensorView& x, const TensorView& y) {
  dispatch_any_floating(y.dtype, F::name,
                        [&]<class T>(TypeTag<T>) { compute<T, T>(context, F{}, y, x); });
}

template <class F>
void numeric(KernelContext& context, const TensorView& x, const TensorView& y) {
  dispatch_any_numeric(y.dtype, F::name,
                       [&]<class T>(TypeTag<T>) { compute<T, T>(context, F{}, y, x); });
}

void add_scalar(KernelContext& context, const TensorView& x, const TensorView& y,
                const Scalar& value) {
  dispatch_any_numeric(y.dtype, "add", [&]<class T>(TypeTag<T>) {
    compute<T, T>(context, AddScalar<operand_t<T>>{operand<T>(value)}, y, x);
  });
}

void mul_scalar(KernelContext& context, const TensorView& x, const TensorView& y,
                const Scalar& value) {
  dispatch_any_numeric(y.dtype, "mul", [&]<class T>(TypeTag<T>) {
    compute<T, T>(context, MulScalar<operand_t<T>>{operand<T>(value)}, y, x);
  });
}

void div_scalar(KernelContext& context, const TensorView& x, const TensorView& y,
                const Scalar& value) {
  dispatch_any_floating(y.dtype, "div", [&]<class T>(TypeTag<T>) {
    compute<T, T>(context, DivScalar<operand_t<T>>{operand<T>(value)}, y, x);
  });
}

void pow_scalar(KernelContext& context, const TensorView& x, const TensorView& y,
                const Scalar& value) {
  const double exponent = value.to_double();
  if (exponent == 1) return floating<Identity>(context, x, y);
  if (exponent == 2) return floating<Square>(context, x, y);
  if (exponent == 3) return floating<Cube>(context, x, y);
  if (exponent == 0.5) return floating<Sqrt>(context, x, y);
  if (exponent == -1) return floating<Reciprocal>(context, x, y);
  dispatch_any_floating(y.dtype, "pow", [&]<class T>(TypeTag<T>) {
    compute<T, T>(context, Power<operand_t<T>>{operand<T>(value)}, y, x);
  });
}

void clamp(KernelContext& context, const TensorView& x, const TensorView& y, const Scalar& low,
           const Scalar& high) {
  dispatch_any_numeric(y.dtype, "clamp", [&]<class T>(TypeTag<T>) {
    compute<T, T>(context, Clamp<operand_t<T>>{operand<T>(low), operand<T>(high)}, y, x);
  });
}

void relu_backward(KernelContext& context, const TensorView& g, const TensorView& y,
                   const TensorView& out) {
  dispatch_any_floating(out.dtype, "relu", [&]<class T>(TypeTag<T>) {
    compute<T, T, T>(context, ReluBackward{}, out, g, y);
  });
}

}  // namespace

void register_unary() {
  constexpr auto cuda = DeviceType::cuda;
  kernels::neg.set(cuda, numeric<Neg>);
  kernels::abs.set(cuda, numeric<Abs>);
  kernels::sign.set(cuda, numeric<Sign>);
  kernels::square.set(cuda, numeric<Square>);
  kernels::add_scalar.set(cuda, add_scalar);
  kernels::mul_scalar.set(cuda, mul_scalar);
  kernels::clamp.set(cuda, clamp);
  kernels::exp.set(cuda, floating<Exp>);
  kernels::log.set(cuda, floating<Log>);
  kernels::log1p.set(cuda, floating<Log1p>);
  kernels::expm1.set(cuda, floating<Expm1>);
  kernels::sqrt.set(cuda, floating<Sqrt>);
  kernels::rsqrt.set(cuda, floating<Rsqrt>);
  kernels::reciprocal.set(cuda, floating<Reciprocal>);
  kernels::sin.set(cuda, floating<Sin>);
  kernels::cos.set(cuda, floating<Cos>);
  kernels::tanh.set(cuda, floating<Tanh>);
  kernels::sigmoid.set(cuda, floating<Sigmoid>);
  kernels::erf.set(cuda, floating<Erf>);
  kernels::relu.set(cuda, floating<Relu>);
  kernels::silu.set(cuda, floating<Silu>);
  kernels::floor.set(cuda, floating<Floor>);
  kernels::div_scalar.set(cuda, div_scalar);
  kernels::pow_scalar.set(cuda, pow_scalar);
  kernels::relu_backward.set(cuda, relu_backward);
}

}  // namespace sash::cuda
