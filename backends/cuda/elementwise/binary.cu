#include "../../../ops/kernels/elementwise.h"

#include <cmath>

#include "compute.cuh"

namespace sash::cuda {
namespace {

struct Sub {
  static constexpr const char* name = "sub";
  __device__ auto operator()(auto a, auto b) const { return a - b; }
};
struct Mul {
  static constexpr const char* name = "mul";
  __device__ auto operator()(auto a, auto b) const { return a * b; }
};
struct Div {
  static constexpr const char* name = "div";
  __device__ auto operator()(auto a, auto b) const { return a / b; }
};
struct Pow {
  static constexpr const char* name = "pow";
  __device__ auto operator()(auto a, auto b) const { return std::pow(a, b); }
};
// A NaN on either side wins.
struct Maximum {
  static constexpr const char* name = "maximum";
  __device__ auto operator()(auto a, auto b) const { return a > b || a != a ? a : b; }
};
struct Minimum {
  static constexpr const char* name = "minimum";
  __device__ auto operator()(auto a, auto b) const { return a < b || a != a ? a : b; }
};

template <class F>
void numeric(KernelContext& context, const TensorView& a, const TensorView& b,
             const TensorView& y) {
  dispatch_any_numeric(y.dtype, F::name,
                       [&]<class T>(TypeTag<T>) { compute<T, T, T>(context, F{}, y, a, b); });
}

template <class F>
void floating(KernelContext& context, const TensorView& a, const TensorView& b,
              const TensorView& y) {
  dispatch_any_floating(y.dtype, F::name,
                        [&]<class T>(TypeTag<T>) { compute<T, T, T>(context, F{}, y, a, b); });
}

}  // namespace

void register_binary() {
  constexpr auto cuda = DeviceType::cuda;
  kernels::add.set(cuda, numeric<Add>);
  kernels::sub.set(cuda, numeric<Sub>);
  kernels::mul.set(cuda, numeric<Mul>);
  kernels::div.set(cuda, floating<Div>);
  kernels::pow.set(cuda, floating<Pow>);
  kernels::maximum.set(cuda, numeric<Maximum>);
  kernels::minimum.set(cuda, numeric<Minimum>);
}

}  // namespace sash::cuda
