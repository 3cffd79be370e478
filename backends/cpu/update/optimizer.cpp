#include <cmath>

#include "../../../ops/kernels/update.h"
#include "chunks.h"

namespace sash::cpu {
namespace {

using kernels::AdamSettings;
using kernels::AdamTensors;
using kernels::SgdSettings;
using kernels::SgdTensors;

// ---- Adam ---------------------------------------------------------------------------------------

template <class T>
struct AdamFactors {
  T scale, new1, beta2, new2, step_size, inverse_root, eps, shrink, weight_decay;

  AdamFactors(const AdamSettings& s, int64_t step) {
    const double lr = *s.lr, t = static_cast<double>(step);
    scale = static_cast<T>(s.gradient.factor());
    new1 = static_cast<T>(1 - s.beta1);
    beta2 = static_cast<T>(s.beta2);
    new2 = static_cast<T>(1 - s.beta2);
    step_size = static_cast<T>(lr / (1 - std::pow(s.beta1, t)));
    inverse_root = static_cast<T>(1 / std::sqrt(1 - std::pow(s.beta2, t)));
    eps = static_cast<T>(s.eps);
    shrink = static_cast<T>(s.decoupled ? 1 - lr * s.weight_decay : 1.0);
    weight_decay = static_cast<T>(s.decoupled ? 0 : s.weight_decay);
  }
};

template <bool kL2, bool kMax, class T>
void adam_loop(const AdamFactors<T>& factors, int64_t n, T* __restrict p, const T* __restrict grad,
               T* __restrict m, T* __restrict v, T* __restrict most) {
  const AdamFactors<T> f = factors;  // a copy, which stays in registers
  for (int64_t i = 0; i < n; ++i) {
    T g = grad[i] * f.scale;
    if (kL2) g += f.weight_decay * p[i];
    const T mean = m[i] + f.new1 * (g - m[i]);
    T square = f.beta2 * v[i] + f.new2 * (g * g);
    m[i] = mean;
    v[i] = square;
    if (kMax) most[i] = square = most[i] > square ? most[i] : square;
    p[i] = p[i] * f.shrink - f.step_size * (mean / (std::sqrt(square) * f.inverse_root + f.eps));
  }
}

template <class T>
void adam(const AdamFactors<T>& f, int64_t n, T* p, const T* grad, T* m, T* v, T* most) {
  const bool l2 = f.weight_decay != 0;
  const auto loop = most ? (l2 ? adam_loop<true, true, T> : adam_loop<false, true, T>)
                         : (l2 ? adam_loop<true, false, T> : adam_loop<false, false, T>);
  loop(f, n, p, grad, m, v, most);
}

template <class T>
void adam_chunk(const AdamSettings& settings, const AdamTensors& x, int64_t begin, int64_t end) {
  T* const p = static_cast<T*>(x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  if constexpr (!kIsHalf<T>) {
    adam(AdamFactors<T>(settings, *x.step), end - begin, p + begin, grad + begin,
         static_cast<T*>(x.exp_avg) + begin, static_cast<T*>(x.exp_avg_sq) + begin,
         x.max_exp_avg_sq ? static_cast<T*>(x.max_exp_avg_sq) + begin : nullptr);
  } else {
    const AdamFactors<float> factors(settings, *x.step);
    float g[kBlock], wide[kBlock], m[kBlock], v[kBlock], most[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      widen(grad + at, n, g);
      if (x.master) {
        adam(factors, n, x.master + at, g, static_cast<float*>(x.exp_avg) + at,
             static_cast<float*>(x.exp_avg_sq) + at,
             x.max_exp_avg_sq ? static_cast<float*>(x.max_exp_avg_sq) + at : nullptr);
        narrow(x.master + at, n, p + at);
        continue;
      }
      T* const first = static_cast<T*>(x.exp_avg) + at;
      T* const second = static_cast<T*>(x.exp_avg_sq) + at;
      T* const third = x.max_exp_avg_sq ? static_cast<T*>(x.max_exp_avg_sq) + at : nullptr;
      widen(p + at, n, wide);
      widen(first, n, m);
      widen(second, n, v);
      if (third) widen(third, n, most);
      adam(factors, n, wide, g, m, v, third ? most : nullptr);
      if (third) narrow(most, n, third);
      narrow(wide, n, p + at);
      narrow(m, n, first);
      narrow(v, n, second);
    }
  }
}

void adam_step(KernelContext& context, std::span<const AdamTensors> tensors,
               const AdamSettings& settings) {
  check_dtypes("adam_step", tensors);
  if (settings.gradient.skips()) return;
  for (const AdamTensors& tensor : tensors) ++*tensor.step;
  const Chunks<AdamTensors> chunks(context, tensors);
  chunks.run([&](int64_t, const AdamTensors& x, int64_t begin, int64_t end) {
    dispatch_any_floating(x.dtype, "adam_step",
                          [&]<class T>(TypeTag<T>) { adam_chunk<T>(settings, x, begin, end); });
  });
}

// ---- SGD ----------------------------------------------------------------------------------------

template <class T>
void sgd(const SgdSettings& s, bool first, int64_t n, T* __restrict p, const T* __restrict grad,
         T* __restrict buffer) {
  const T lr = static_cast<T>(*s.lr), weight_decay = static_cast<T>(s.weight_decay);
  const T scale = static_cast<T>(s.gradient.factor());
  const bool decays = s.weight_decay != 0;
  const auto gradient = [&](int64_t i) {
    const T g = grad[i] * scale;
    return decays ? g + weight_decay * p[i] : g;
  };
  if (!buffer) {
    for (int64_t i = 0; i < n; ++i) p[i] -= lr * gradient(i);
    return;
  }
  const T momentum = static_cast<T>(s.momentum), fresh = static_cast<T>(1 - s.dampening);
  const bool nesterov = s.nesterov;
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient(i);
    const T b = first ? g : momentum * buffer[i] + fresh * g;
    buffer[i] = b;
    p[i] -= lr * (nesterov ? g + momentum * b : b);
  }
}

template <class T>
void sgd_chunk(const SgdSettings& settings, const SgdTensors& x, int64_t begin, int64_t end) {
  const bool first = *x.step == 1;
  T* const p = static_cast<T*>(x.parameter);
  const T* const grad = static_cast<const T*>(x.gradient);
  const auto buffer_at = [&]<class S>(TypeTag<S>, int64_t at) {
    return x.buffer ? static_cast<S*>(x.buffer) + at : nullptr;
  };
  if constexpr (!kIsHalf<T>) {
    sgd(settings, first, end - begin, p + begin, grad + begin, buffer_at(TypeTag<T>{}, begin));
  } else {
    float g[kBlock], wide[kBlock], b[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      widen(grad + at, n, g);
      if (x.master) {
        sgd(settings, first, n, x.master + at, g, buffer_at(TypeTag<float>{}, at));
        narrow(x.master + at, n, p + at);
        continue;
      }
      T* const buffer = buffer_at(TypeTag<T>{}, at);
      widen(p + at, n, wide);
      if (buffer) widen(buffer, n, b);
      sgd(settings, first, n, wide, g, buffer ? b : nullptr);
      narrow(wide, n, p + at);
      if (buffer) narrow(b, n, buffer);
    }
  }
}

void sgd_step(KernelContext& context, std::span<const SgdTensors> tensors,
              const SgdSettings& settings) {
  check_dtypes("sgd_step", tensors);
  if (settings.gradient.skips()) return;
  for (const SgdTensors& tensor : tensors) ++*tensor.step;
  const Chunks<SgdTensors> chunks(context, tensors);
  chunks.run([&](int64_t, const SgdTensors& x, int64_t begin, int64_t end) {
    dispatch_any_floating(x.dtype, "sgd_step",
                          [&]<class T>(TypeTag<T>) { sgd_chunk<T>(settings, x, begin, end); });
  });
}

}  // namespace

void register_optimizer() {
  kernels::adam_step.set(DeviceType::cpu, adam_step);
  kernels::sgd_step.set(DeviceType::cpu, sgd_step);
}

}  // namespace sash::cpu
