#include <cmath>

#include "../../../ops/kernels/update.h"
#include "chunks.h"

namespace sash::cpu {
namespace {

using kernels::FlatTensor;

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

template <class T>
double sum_of_half_squares(const T* x, int64_t n) {
  double sum = 0;
  float wide[kBlock];
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t count = std::min(kBlock, n - at);
    widen(x + at, count, wide);
    sum += sum_of_squares(wide, count);
  }
  return sum;
}

void global_norm(KernelContext& context, std::span<const FlatTensor> tensors, double* norm) {
  check_dtypes("global_norm", tensors);
  const Chunks<FlatTensor> chunks(context, tensors);
  const Workspace partials(context, chunks.count() * static_cast<int64_t>(sizeof(double)));
  auto* partial = partials.ptr<double>();
  chunks.run([&](int64_t chunk, const FlatTensor& x, int64_t begin, int64_t end) {
    dispatch_any_floating(x.dtype, "global_norm", [&]<class T>(TypeTag<T>) {
      const T* values = static_cast<const T*>(x.data) + begin;
      if constexpr (kIsHalf<T>) {
        partial[chunk] = sum_of_half_squares(values, end - begin);
      } else {
        partial[chunk] = sum_of_squares(values, end - begin);
      }
    });
  });
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) sum += partial[chunk];
  *norm = std::sqrt(sum);
}

// x[i] = f(x[i]) over all tensors, in place.
template <class F>
void update_all(KernelContext& context, const char* op, std::span<const FlatTensor> tensors, F f) {
  check_dtypes(op, tensors);
  const Chunks<FlatTensor> chunks(context, tensors);
  chunks.run([&](int64_t, const FlatTensor& x, int64_t begin, int64_t end) {
    dispatch_any_floating(x.dtype, op, [&]<class T>(TypeTag<T>) {
      T* values = static_cast<T*>(x.data);
      if constexpr (kIsHalf<T>) {
        float wide[kBlock];
        for (int64_t at = begin; at < end; at += kBlock) {
          const int64_t count = std::min(kBlock, end - at);
          widen(values + at, count, wide);
          for (int64_t i = 0; i < count; ++i) wide[i] = f(wide[i]);
          narrow(wide, count, values + at);
        }
      } else {
        for (int64_t i = begin; i < end; ++i) values[i] = f(values[i]);
      }
    });
  });
}

void clip_by_norm(KernelContext& context, std::span<const FlatTensor> tensors, const double* norm,
                  double max_norm) {
  const double factor = max_norm / (*norm + 1e-6);
  if (factor >= 1) return;
  update_all(context, "clip_by_norm", tensors,
             [factor]<class T>(T x) { return x * static_cast<T>(factor); });
}

void clip_by_value(KernelContext& context, std::span<const FlatTensor> tensors, double limit) {
  update_all(context, "clip_by_value", tensors, [limit]<class T>(T x) {
    return std::min(std::max(x, static_cast<T>(-limit)), static_cast<T>(limit));
  });
}

}  // namespace

void register_clip() {
  kernels::global_norm.set(DeviceType::cpu, global_norm);
  kernels::clip_by_norm.set(DeviceType::cpu, clip_by_norm);
  kernels::clip_by_value.set(DeviceType::cpu, clip_by_value);
}

}  // namespace sash::cpu
