#include "../../../ops/kernels/glu.h"

#include <algorithm>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "gelu.h"

namespace sash::cpu {
namespace {

using kernels::Gate;

/// Elements of a row that are worked on at a time.
constexpr int64_t kPart = 256;

/// A gate c times P(c): the cdf P, and c P'(c).
struct SiluGate {
  static constexpr bool clamps = false;
  template <class T>
  static Lanes<T> cdf(const Lanes<T>& c) {
    return T(1) / (exp(-c) + T(1));
  }
  template <class T>
  static Lanes<T> slope(const Lanes<T>& c, const Lanes<T>& p) {
    return c * p * (T(1) - p);
  }
};

struct GeluGate {
  static constexpr bool clamps = false;
  template <class T>
  static Lanes<T> cdf(const Lanes<T>& c) {
    return normal_cdf(c);
  }
  template <class T>
  static Lanes<T> slope(const Lanes<T>& c, const Lanes<T>&) {
    return normal_slope(c);
  }
};

struct TanhGate {
  static constexpr bool clamps = false;
  template <class T>
  static Lanes<T> cdf(const Lanes<T>& c) {
    return tanh_cdf(c);
  }
  template <class T>
  static Lanes<T> slope(const Lanes<T>& c, const Lanes<T>& p) {
    return tanh_slope(c, p);
  }
};

struct ClampedGate {
  static constexpr bool clamps = true;
  template <class T>
  static Lanes<T> cdf(const Lanes<T>& c) {
    return T(1) / (exp(c * T(-kernels::kGateSlope)) + T(1));
  }
  template <class T>
  static Lanes<T> slope(const Lanes<T>& c, const Lanes<T>& p) {
    return c * T(kernels::kGateSlope) * p * (T(1) - p);
  }
};

/// What of x takes part: the gate c, and the factor d of it. A NaN stays one.
template <class G, class T>
Lanes<T> gate_of(const Lanes<T>& a) {
  if constexpr (!G::clamps) return a;
  return min_or_nan(a, T(kernels::kGateLimit));
}
template <class G, class T>
Lanes<T> factor_of(const Lanes<T>& b) {
  constexpr T limit = T(kernels::kGateLimit);
  if constexpr (!G::clamps) return b;
  return max_or_nan(min_or_nan(b, limit), Lanes<T>(-limit)) + T(1);
}

template <class G, class S>
void forward_part(const S* a, const S* b, S* y, int64_t n) {
  using T = compute_t<S>;
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> c = gate_of<G, T>(load(a + i, lanes));
    store(y + i, lanes, c * G::cdf(c) * factor_of<G, T>(load(b + i, lanes)));
  });
}

template <class G, class S>
void backward_part(const S* a, const S* b, const S* g, S* da, S* db, int64_t n) {
  using T = compute_t<S>;
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> from_a = load(a + i, lanes), from_b = load(b + i, lanes);
    const Lanes<T> grad = load(g + i, lanes), c = gate_of<G>(from_a), p = G::cdf(c);
    Lanes<T> to_gate = grad * factor_of<G>(from_b) * (p + G::slope(c, p));
    Lanes<T> to_value = grad * c * p;
    if constexpr (G::clamps) {
      constexpr T limit = T(kernels::kGateLimit);
      constexpr T before = limit - 4 * std::numeric_limits<T>::epsilon();  // the number below 7
      to_gate = zero_above(to_gate, from_a, before);
      to_value = zero_above(to_value, abs(from_b), before);
    }
    store(da + i, lanes, to_gate);
    store(db + i, lanes, to_value);
  });
}

/// Calls f(row, first, n) for the parts of rows of `width` elements.
template <class F>
void for_parts(int64_t rows, int64_t width, F&& f) {
  const int64_t per_row = (width + kPart - 1) / kPart;
  parallel_for_each(rows * per_row, 64, [&](int64_t part) {
    const int64_t first = part % per_row * kPart;
    f(part / per_row, first, std::min<int64_t>(kPart, width - first));
  });
}

template <class F>
void with_gate(Gate gate, F&& f) {
  if (gate == Gate::silu) return f(SiluGate{});
  if (gate == Gate::gelu) return f(GeluGate{});
  if (gate == Gate::gelu_tanh) return f(TanhGate{});
  f(ClampedGate{});
}

void glu_forward(KernelContext&, View x, View y, Gate gate) {
  dispatch_with_halves(x.dtype, "glu", [&]<class T>(TypeTag<T>) {
    with_gate(gate, [&]<class G>(G) {
      const int64_t width = y.shape[1];
      for_parts(y.shape[0], width, [&](int64_t row, int64_t first, int64_t n) {
        const T* const a = x.ptr<const T>() + row * 2 * width + first;
        forward_part<G>(a, a + width, y.ptr<T>() + row * width + first, n);
      });
    });
  });
}

void glu_backward(KernelContext&, View x, View g, View dx, Gate gate) {
  dispatch_with_halves(x.dtype, "glu", [&]<class T>(TypeTag<T>) {
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
  kernels::glu_forward.set(DeviceType::cpu, glu_forward);
  kernels::glu_backward.set(DeviceType::cpu, glu_backward);
}

}  // namespace sash::cpu
