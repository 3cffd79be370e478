#include "../../../ops/kernels/update.h"

#include <algorithm>
#include <cmath>

#include "../../../core/backend/dispatch.h"
#include "../../../core/parallel.h"

namespace sash::cpu {
namespace {

// Throws `DTypeError`, before anything is written, if a dtype has no kernel.
template <class Tensors>
void check_dtypes(const char* op, std::span<const Tensors> tensors) {
  for (const Tensors& x : tensors) dispatch_floating(x.dtype, op, [](auto) {});
}

// Elements per chunk: four arrays of this size fit in a core's L2 cache.
constexpr int64_t kChunk = 16384;

// All tensors, split into chunks with consecutive numbers. A chunk belongs to one tensor.
template <class Tensors>
class Chunks {
 public:
  Chunks(const KernelContext& context, std::span<const Tensors> tensors)
      : tensors_(tensors),
        starts_(context, static_cast<int64_t>((tensors.size() + 1) * sizeof(int64_t))) {
    int64_t* start = starts_.ptr<int64_t>();
    start[0] = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      start[i + 1] = start[i] + (tensors[i].count + kChunk - 1) / kChunk;
    }
  }

  int64_t count() const { return starts_.ptr<int64_t>()[tensors_.size()]; }

  // Calls f(chunk, tensor, begin, end) for every chunk, in parallel.
  template <class F>
  void run(F f) const {
    const int64_t* first = starts_.ptr<int64_t>();
    const int64_t* last = first + tensors_.size() + 1;
    parallel_for(count(), 1, [&](int64_t chunk, int64_t chunk_end) {
      for (; chunk < chunk_end; ++chunk) {
        const int64_t* start = std::upper_bound(first, last, chunk) - 1;
        const Tensors& tensor = tensors_[static_cast<size_t>(start - first)];
        const int64_t begin = (chunk - *start) * kChunk;
        f(chunk, tensor, begin, std::min(begin + kChunk, tensor.count));
      }
    });
  }

 private:
  std::span<const Tensors> tensors_;
  Workspace starts_;
};

// ---- Adam ---------------------------------------------------------------------------------------

template <class T>
struct AdamFactors {
  T new1, beta2, new2, step_size, root_correction, eps, shrink, weight_decay;

  AdamFactors(const kernels::AdamSettings& s, int64_t step) {
    const double lr = *s.lr, t = static_cast<double>(step);
    new1 = static_cast<T>(1 - s.beta1);
    beta2 = static_cast<T>(s.beta2);
    new2 = static_cast<T>(1 - s.beta2);
    step_size = static_cast<T>(lr / (1 - std::pow(s.beta1, t)));
    root_correction = static_cast<T>(std::sqrt(1 - std::pow(s.beta2, t)));
    eps = static_cast<T>(s.eps);
    shrink = static_cast<T>(s.decoupled ? 1 - lr * s.weight_decay : 1.0);
    weight_decay = static_cast<T>(s.weight_decay);
  }
};

template <bool kL2, class T>
void adam_chunk(const AdamFactors<T>& f, int64_t n, T* __restrict p, const T* __restrict grad,
                T* __restrict m, T* __restrict v) {
  const T new1 = f.new1, beta2 = f.beta2, new2 = f.new2, step_size = f.step_size;
  const T root_correction = f.root_correction, eps = f.eps, shrink = f.shrink;
  const T weight_decay = f.weight_decay;
  for (int64_t i = 0; i < n; ++i) {
    const T g = kL2 ? grad[i] + weight_decay * p[i] : grad[i];
    m[i] += new1 * (g - m[i]);
    v[i] = beta2 * v[i] + new2 * (g * g);
    p[i] = p[i] * shrink - step_size * (m[i] / (std::sqrt(v[i]) / root_correction + eps));
  }
}

void adam_step(KernelContext& context, std::span<const kernels::AdamTensors> tensors,
               const kernels::AdamSettings& settings) {
  check_dtypes("adam_step", tensors);
  for (const kernels::AdamTensors& tensor : tensors) ++*tensor.step;
  const bool l2 = !settings.decoupled && settings.weight_decay != 0;
  const Chunks<kernels::AdamTensors> chunks(context, tensors);
  chunks.run([&](int64_t, const kernels::AdamTensors& x, int64_t begin, int64_t end) {
    dispatch_floating(x.dtype, "adam_step", [&]<class T>(TypeTag<T>) {
      const AdamFactors<T> factors(settings, *x.step);
      (l2 ? adam_chunk<true, T> : adam_chunk<false, T>)(factors, end - begin,
                                                        static_cast<T*>(x.parameter) + begin,
                                                        static_cast<const T*>(x.gradient) + begin,
                                                        static_cast<T*>(x.exp_avg) + begin,
                                                        static_cast<T*>(x.exp_avg_sq) + begin);
    });
  });
}

// ---- SGD ----------------------------------------------------------------------------------------

template <class T>
void sgd_chunk(const kernels::SgdSettings& s, bool first, int64_t n, T* __restrict p,
               const T* __restrict grad, T* __restrict buffer) {
  const T lr = static_cast<T>(*s.lr), weight_decay = static_cast<T>(s.weight_decay);
  const bool decays = s.weight_decay != 0;
  if (!buffer) {
    for (int64_t i = 0; i < n; ++i) p[i] -= lr * (decays ? grad[i] + weight_decay * p[i] : grad[i]);
    return;
  }
  const T momentum = static_cast<T>(s.momentum), fresh = static_cast<T>(1 - s.dampening);
  const bool nesterov = s.nesterov;
  for (int64_t i = 0; i < n; ++i) {
    const T g = decays ? grad[i] + weight_decay * p[i] : grad[i];
    const T b = first ? g : momentum * buffer[i] + fresh * g;
    buffer[i] = b;
    p[i] -= lr * (nesterov ? g + momentum * b : b);
  }
}

void sgd_step(KernelContext& context, std::span<const kernels::SgdTensors> tensors,
              const kernels::SgdSettings& settings) {
  check_dtypes("sgd_step", tensors);
  for (const kernels::SgdTensors& tensor : tensors) ++*tensor.step;
  const Chunks<kernels::SgdTensors> chunks(context, tensors);
  chunks.run([&](int64_t, const kernels::SgdTensors& x, int64_t begin, int64_t end) {
    dispatch_floating(x.dtype, "sgd_step", [&]<class T>(TypeTag<T>) {
      T* buffer = x.buffer ? static_cast<T*>(x.buffer) + begin : nullptr;
      sgd_chunk<T>(settings, *x.step == 1, end - begin, static_cast<T*>(x.parameter) + begin,
                   static_cast<const T*>(x.gradient) + begin, buffer);
    });
  });
}

// ---- clipping -----------------------------------------------------------------------------------

template <class T>
double sum_of_squares(const T* x, int64_t n) {
  constexpr int64_t kLanes = 16;  // independent sums, so that the loop vectorises
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      const auto value = static_cast<double>(x[i + k]);
      lanes[k] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

void global_norm(KernelContext& context, std::span<const kernels::FlatTensor> tensors,
                 double* norm) {
  check_dtypes("global_norm", tensors);
  const Chunks<kernels::FlatTensor> chunks(context, tensors);
  const Workspace partials(context, chunks.count() * static_cast<int64_t>(sizeof(double)));
  auto* partial = partials.ptr<double>();
  chunks.run([&](int64_t chunk, const kernels::FlatTensor& x, int64_t begin, int64_t end) {
    dispatch_floating(x.dtype, "global_norm", [&]<class T>(TypeTag<T>) {
      partial[chunk] = sum_of_squares(static_cast<const T*>(x.data) + begin, end - begin);
    });
  });
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) sum += partial[chunk];
  *norm = std::sqrt(sum);
}

// x[i] = f(x[i]) over all tensors, in place.
template <class F>
void update_all(KernelContext& context, const char* op,
                std::span<const kernels::FlatTensor> tensors, F f) {
  check_dtypes(op, tensors);
  const Chunks<kernels::FlatTensor> chunks(context, tensors);
  chunks.run([&](int64_t, const kernels::FlatTensor& x, int64_t begin, int64_t end) {
    dispatch_floating(x.dtype, op, [&]<class T>(TypeTag<T>) {
      T* values = static_cast<T*>(x.data);
      for (int64_t i = begin; i < end; ++i) values[i] = f(values[i]);
    });
  });
}

void clip_by_norm(KernelContext& context, std::span<const kernels::FlatTensor> tensors,
                  const double* norm, double max_norm) {
  const double factor = max_norm / (*norm + 1e-6);
  if (factor >= 1) return;
  update_all(context, "clip_by_norm", tensors,
             [factor]<class T>(T x) { return x * static_cast<T>(factor); });
}

void clip_by_value(KernelContext& context, std::span<const kernels::FlatTensor> tensors,
                   double limit) {
  update_all(context, "clip_by_value", tensors, [limit]<class T>(T x) {
    return std::min(std::max(x, static_cast<T>(-limit)), static_cast<T>(limit));
  });
}

}  // namespace

void register_optimizer() {
  kernels::adam_step.set(DeviceType::cpu, adam_step);
  kernels::sgd_step.set(DeviceType::cpu, sgd_step);
  kernels::global_norm.set(DeviceType::cpu, global_norm);
  kernels::clip_by_norm.set(DeviceType::cpu, clip_by_norm);
  kernels::clip_by_value.set(DeviceType::cpu, clip_by_value);
}

}  // namespace sash::cpu
