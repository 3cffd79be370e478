#include "../../../ops/kernels/normed_heads.h"

#include <algorithm>
#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"
#include "../norm/rows.h"
#include "../shape/in_float.h"

namespace sash::cpu {
namespace {

// The weights' gradients have one partial sum per chunk of tokens; these are added in order.
constexpr int64_t kChunks = 16;

/// The heads of a token, x [N, D].
template <class T>
struct Call {
  const TensorView &x, &cos, &sin;
  const kernels::NormedHeadsParams& params;
  const T* weights[2];  // of queries and of keys
  int64_t width = x.shape[3], count = x.shape[2], tokens = x.shape[0] * x.shape[1];
  int64_t normed = params.heads + params.kv_heads;
  T offset = params.unit_offset ? T(1) : T(0);

  int64_t kind(int64_t head) const { return head < params.heads ? 0 : 1; }
  T* row(const TensorView& view, int64_t token, int64_t head) const {
    return view.ptr<T>() + (token * count + head) * width;
  }
  /// Turns pairs i and i + D / 2 of y by the angles of the token's position, times sign.
  void turn(T* y, int64_t token, T sign) const {
    if (!cos.data) return;
    const int64_t n = width / 2, b = token / x.shape[1], s = token % x.shape[1];
    const int64_t at = (cos.shape[0] == 1 ? 0 : b) * cos.strides[0] + s * n;
    const T *const c = cos.ptr<const T>() + at, *const sines = sin.ptr<const T>() + at;
    for (int64_t i = 0; i < n; ++i) {
      const T first = y[i], second = y[i + n], sine = sign * sines[i];
      y[i] = first * c[i] - second * sine;
      y[i + n] = first * sine + second * c[i];
    }
  }
};

template <class T>
void forward_head(const Call<T>& call, const T* x, const T* weight, T* y, T* rstd) {
  const int64_t n = call.width;
  Lanes<T> squares = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) {
    const Lanes<T> value = load(x + i, lanes);
    squares += value * value;
  });
  *rstd = 1 / std::sqrt(sum_of(squares) / static_cast<T>(n) + static_cast<T>(call.params.eps));
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * *rstd * (weight[i] + call.offset);
}

/// d is the gradient of the normalised head, and becomes that of x; dweight may be null.
template <class T>
void backward_head(const Call<T>& call, const T* x, const T* weight, T rstd, T* d, T* dweight) {
  const int64_t n = call.width;
  if (dweight) {
    for (int64_t i = 0; i < n; ++i) dweight[i] += d[i] * (x[i] * rstd);
  }
  for (int64_t i = 0; i < n; ++i) d[i] *= weight[i] + call.offset;
  Lanes<T> products = T(0);
  for_lanes(n, [&](int64_t i, auto lanes) { products += load(d + i, lanes) * load(x + i, lanes); });
  const T mean = sum_of(products) * rstd / static_cast<T>(n);
  for (int64_t i = 0; i < n; ++i) d[i] = rstd * (d[i] - x[i] * rstd * mean);
}

void split_forward(KernelContext&, const TensorView& x, const TensorView& q_weight,
                   const TensorView& k_weight, const TensorView& cos, const TensorView& sin,
                   const TensorView& y, const TensorView& rstd,
                   const kernels::NormedHeadsParams& params) {
  dispatch_floating(x.dtype, "normed_heads", [&]<class T>(TypeTag<T>) {
    const Call<T> call{x, cos, sin, params, {q_weight.ptr<const T>(), k_weight.ptr<const T>()}};
    const int64_t grain = std::max<int64_t>(1, 16384 / (call.count * call.width));
    parallel_for(call.tokens, grain, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        for (int64_t h = 0; h < call.normed; ++h) {
          T* const to = call.row(y, token, h);
          forward_head(call, call.row(x, token, h), call.weights[call.kind(h)], to,
                       rstd.ptr<T>() + token * call.normed + h);
          call.turn(to, token, 1);
        }
        std::copy(call.row(x, token, call.normed), call.row(x, token, call.count),
                  call.row(y, token, call.normed));
      }
    });
  });
}

void split_backward(KernelContext& context, const TensorView& x, const TensorView& q_weight,
                    const TensorView& k_weight, const TensorView& rstd, const TensorView& cos,
                    const TensorView& sin, const TensorView& g, const TensorView& dx,
                    const TensorView& dq_weight, const TensorView& dk_weight,
                    const kernels::NormedHeadsParams& params) {
  dispatch_floating(x.dtype, "normed_heads", [&]<class T>(TypeTag<T>) {
    const Call<T> call{x, cos, sin, params, {q_weight.ptr<const T>(), k_weight.ptr<const T>()}};
    const int64_t n = call.width,
                  grain = std::max<int64_t>(1, (call.tokens + kChunks - 1) / kChunks);
    const int64_t chunks = (call.tokens + grain - 1) / grain;
    const bool parameters = dq_weight.data;
    const Workspace scratch(context, parameters ? chunks * 2 * n * int64_t{sizeof(T)} : 0);
    T* const partial = scratch.ptr<T>();
    parallel_for(call.tokens, grain, [&](int64_t begin, int64_t end) {
      T* const sums = parameters ? partial + begin / grain * 2 * n : nullptr;
      if (sums) std::fill_n(sums, 2 * n, T(0));
      for (int64_t token = begin; token < end; ++token) {
        T* const first = call.row(dx, token, 0);
        const T* const from = call.row(g, token, 0);
        if (first != from) std::copy(from, from + call.count * n, first);
        for (int64_t h = 0; h < call.normed; ++h) {
          const int64_t kind = call.kind(h);
          call.turn(first + h * n, token, -1);
          backward_head(call, call.row(x, token, h), call.weights[kind],
                        rstd.ptr<T>()[token * call.normed + h], first + h * n,
                        sums ? sums + kind * n : nullptr);
        }
      }
    });
    if (!parameters) return;
    T* const out[2] = {dq_weight.ptr<T>(), dk_weight.ptr<T>()};
    for (int64_t i = 0; i < 2 * n; ++i) {
      T total = 0;
      for (int64_t c = 0; c < chunks; ++c) total += partial[c * 2 * n + i];
      out[i / n][i % n] = total;
    }
  });
}

}  // namespace

void register_normed_heads() {
  kernels::normed_heads_forward.set(DeviceType::cpu, in_float<split_forward, 5>);
  kernels::normed_heads_backward.set(DeviceType::cpu, in_float<split_backward, 7, 8, 9>);
}

}  // namespace sash::cpu
