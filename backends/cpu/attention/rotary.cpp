#include "../../../ops/kernels/rotary.h"

#include <algorithm>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../shape/in_float.h"

namespace sash::cpu {
namespace {

/// Turns pairs i and i + n of x by the n angles. sign is that of the angles.
template <class T>
void turn_halves(T* x, const T* cos, const T* sin, int64_t n, T sign) {
  for (int64_t i = 0; i < n; ++i) {
    const T a = x[i], b = x[i + n], c = cos[i], s = sign * sin[i];
    x[i] = a * c - b * s;
    x[i + n] = a * s + b * c;
  }
}

/// The same of pairs 2 i and 2 i + 1.
template <class T>
void turn_neighbours(T* x, const T* cos, const T* sin, int64_t n, T sign) {
  for (int64_t i = 0; i < n; ++i) {
    const T a = x[2 * i], b = x[2 * i + 1], c = cos[i], s = sign * sin[i];
    x[2 * i] = a * c - b * s;
    x[2 * i + 1] = a * s + b * c;
  }
}

template <class T>
void turn_heads(const TensorView& x, const TensorView& cos, const TensorView& sin,
                const TensorView& y, const kernels::RotaryParams& params, int64_t b, int64_t s) {
  const int64_t n = cos.shape[2], width = x.shape[3];
  const int64_t angles = (cos.shape[0] == 1 ? 0 : b) * cos.strides[0] + s * n;
  const auto turn = params.interleaved ? turn_neighbours<T> : turn_halves<T>;
  for (int64_t h = 0; h < x.shape[2]; ++h) {
    const T* const from = x.ptr<const T>() + b * x.strides[0] + s * x.strides[1] + h * x.strides[2];
    T* const to = y.ptr<T>() + b * y.strides[0] + s * y.strides[1] + h * y.strides[2];
    if (to != from) std::copy(from, from + width, to);
    if (h >= params.heads) continue;
    turn(to, cos.ptr<const T>() + angles, sin.ptr<const T>() + angles, n,
         params.back ? T(-1) : T(1));
  }
}

void rotary(KernelContext&, const TensorView& x, const TensorView& cos, const TensorView& sin,
            const TensorView& y, const kernels::RotaryParams& params) {
  dispatch_floating(x.dtype, "rotary", [&]<class T>(TypeTag<T>) {
    const int64_t tokens = x.shape[0] * x.shape[1];
    const int64_t grain =
        std::max<int64_t>(1, 16384 / std::max<int64_t>(1, x.shape[2] * x.shape[3]));
    parallel_for(tokens, grain, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        turn_heads<T>(x, cos, sin, y, params, token / x.shape[1], token % x.shape[1]);
      }
    });
  });
}

}  // namespace

void register_rotary() { kernels::rotary.set(DeviceType::cpu, in_float<rotary, 3>); }

}  // namespace sash::cpu
