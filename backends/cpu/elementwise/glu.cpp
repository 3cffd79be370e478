#include "../../../ops/kernels/glu.h"

#include <algorithm>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/in_float.h"
#include "gelu.h"

namespace sash::cpu {
namespace {

using kernels::Gate;

/// Elements that are worked on at a time; intermediate results stay in the first cache.
constexpr Eigen::Index kPart = 256;

template <class T>
using Part = Eigen::Array<T, Eigen::Dynamic, 1, 0, kPart, 1>;

/// A gate c times P(c): the cdf P, and c P'(c).
struct SiluGate {
  static constexpr bool clamps = false;
  template <class T>
  static Part<T> cdf(const Part<T>& c) {
    return (T(1) + (-c).exp()).inverse();
  }
  template <class T>
  static Part<T> slope(const Part<T>& c, const Part<T>& p) {
    return c * p * (T(1) - p);
  }
};

struct GeluGate {
  static constexpr bool clamps = false;
  template <class T>
  static Part<T> cdf(const Part<T>& c) {
    return normal_cdf<T>(c);
  }
  template <class T>
  static Part<T> slope(const Part<T>& c, const Part<T>&) {
    return c * (kDensity<T> * (T(-0.5) * c.square()).exp());
  }
};

struct TanhGate {
  static constexpr bool clamps = false;
  template <class T>
  static Part<T> cdf(const Part<T>& c) {
    return tanh_cdf<T>(c);
  }
  template <class T>
  static Part<T> slope(const Part<T>& c, const Part<T>& p) {
    return c * p * (T(1) - p) * kTwoK<T> * (T(1) + 3 * kCubic<T> * c.square());
  }
};

struct ClampedGate {
  static constexpr bool clamps = true;
  template <class T>
  static Part<T> cdf(const Part<T>& c) {
    return (T(1) + (c * T(-kernels::kGateSlope)).exp()).inverse();
  }
  template <class T>
  static Part<T> slope(const Part<T>& c, const Part<T>& p) {
    return c * T(kernels::kGateSlope) * p * (T(1) - p);
  }
};

/// What of x takes part: the gate c, and the factor d of it. A NaN stays one.
template <class G, class T>
Part<T> gate_of(const T* a, Eigen::Index n) {
  Part<T> c = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>(a, n);
  if constexpr (G::clamps) c = (c > T(kernels::kGateLimit)).select(T(kernels::kGateLimit), c);
  return c;
}
template <class G, class T>
Part<T> factor_of(const T* b, Eigen::Index n) {
  constexpr T limit = T(kernels::kGateLimit);
  Part<T> d = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>(b, n);
  if constexpr (G::clamps) {
    d = (d > limit).select(limit, d);
    d = (d < -limit).select(-limit, d) + T(1);
  }
  return d;
}

template <class G, class T>
void forward_part(const T* a, const T* b, T* y, Eigen::Index n) {
  const Part<T> c = gate_of<G>(a, n);
  Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(y, n) = c * G::cdf(c) * factor_of<G>(b, n);
}

template <class G, class T>
void backward_part(const T* a, const T* b, const T* g, T* da, T* db, Eigen::Index n) {
  using Map = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
  using ConstMap = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
  const Part<T> c = gate_of<G>(a, n), p = G::cdf(c);
  Part<T> to_gate = ConstMap(g, n) * factor_of<G>(b, n) * (p + G::slope(c, p));
  Part<T> to_value = ConstMap(g, n) * c * p;
  if constexpr (G::clamps) {
    constexpr T limit = T(kernels::kGateLimit);
    to_gate = (ConstMap(a, n) > limit).select(T(0), to_gate);
    to_value = (ConstMap(b, n).abs() > limit).select(T(0), to_value);
  }
  Map(da, n) = to_gate;
  Map(db, n) = to_value;
}

/// Calls f(row, first, n) for the parts of rows of `width` elements.
template <class F>
void for_parts(int64_t rows, int64_t width, F&& f) {
  const int64_t per_row = (width + kPart - 1) / kPart;
  parallel_for(rows * per_row, 64, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part % per_row * kPart;
      f(part / per_row, first, std::min<int64_t>(kPart, width - first));
    }
  });
}

template <class F>
void with_gate(Gate gate, F&& f) {
  switch (gate) {
    case Gate::silu:
      return f(SiluGate{});
    case Gate::gelu:
      return f(GeluGate{});
    case Gate::gelu_tanh:
      return f(TanhGate{});
    case Gate::clamped_silu:
      return f(ClampedGate{});
  }
}

void glu_forward(KernelContext&, const TensorView& x, const TensorView& y, Gate gate) {
  dispatch_floating(x.dtype, "glu", [&]<class T>(TypeTag<T>) {
    with_gate(gate, [&]<class G>(G) {
      const int64_t width = y.shape[1];
      for_parts(y.shape[0], width, [&](int64_t row, int64_t first, int64_t n) {
        const T* const a = x.ptr<const T>() + row * 2 * width + first;
        forward_part<G>(a, a + width, y.ptr<T>() + row * width + first, n);
      });
    });
  });
}

void glu_backward(KernelContext&, const TensorView& x, const TensorView& g, const TensorView& dx,
                  Gate gate) {
  dispatch_floating(x.dtype, "glu", [&]<class T>(TypeTag<T>) {
    with_gate(gate, [&]<class G>(G) {
      const int64_t width = g.shape[1];
      for_parts(g.shape[0], width, [&](int64_t row, int64_t first, int64_t n) {
        const int64_t at = row * 2 * width + first;
        const T* const a = x.ptr<const T>() + at;
        T* const da = dx.ptr<T>() + at;
        backward_part<G>(a, a + width, g.ptr<const T>() + row * width + first, da, da + width, n);
      });
    });
  });
}

}  // namespace

void register_glu() {
  kernels::glu_forward.set(DeviceType::cpu, in_float<glu_forward, 1>);
  kernels::glu_backward.set(DeviceType::cpu, in_float<glu_backward, 2>);
}

}  // namespace sash::cpu
