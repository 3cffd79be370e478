#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "../../core/backend/kernel.h"
#include "../../core/dtype.h"
#include "../../core/export.h"

/// Multi-tensor kernels of a training step: one call covers all parameters. Memory is contiguous
/// and floating. All pointers are device memory, also those to numbers that change in each step, so
/// that nothing waits for the host.
namespace sash::kernels {

/// Contiguous elements to read or overwrite.
struct FlatTensor {
  DType dtype = DType::float32;
  int64_t count = 0;
  void* data = nullptr;
};

/// The factor of every gradient in a step:
///
///     min(max_norm / (norm / loss_scale + 1e-6), 1) / loss_scale
///
/// An infinite max_norm clips nothing, whatever the norm.
/// With a loss scale, a step whose norm is NaN or infinite changes nothing and is not counted.
struct GradientScale {
  const double* norm = nullptr;  ///< of all gradients, on the device; null: the factor is 1
  double max_norm = std::numeric_limits<double>::infinity();
  const double* loss_scale = nullptr;  ///< what the loss was multiplied with, on the device

  SASH_HOST_DEVICE bool skips() const { return loss_scale && !(*norm - *norm == 0); }
  /// A NaN norm makes NaN, if gradients are clipped.
  SASH_HOST_DEVICE double factor() const {
    if (!norm) return 1;
    const double scale = loss_scale ? *loss_scale : 1;
    if (max_norm - max_norm != 0) return 1 / scale;  // infinite
    const double clip = max_norm / (*norm / scale + 1e-6);
    return (clip >= 1 ? 1 : clip) / scale;
  }
};

/// One parameter p, its gradient g, and the tensors that Adam keeps for p. Without a master, all
/// have one dtype. With a master, p and g are halves, the others float32; the step changes the
/// master, and p is the rounded master. In a call, all tensors of a dtype have masters, or none.
struct AdamTensors {
  DType dtype = DType::float32;  ///< of p and g
  int64_t count = 0;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  int64_t* step = nullptr;  ///< steps taken before this one; the kernel adds 1
  float* master = nullptr;
  void* max_exp_avg_sq = nullptr;  ///< of AMSGrad, else null
};

struct AdamSettings {
  const double* lr = nullptr;  ///< on the device
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;  ///< AdamW: p *= 1 - lr wd first; else g += wd p
  GradientScale gradient{};
};

/// With t the step counted from 1:
///   m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2
///   p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// where AMSGrad takes the largest v so far.
extern SASH_API Kernel<void(KernelContext&, std::span<const AdamTensors>, const AdamSettings&)>
    adam_step;

/// One parameter and its momentum buffer, null where the momentum is 0. Dtypes and masters as in
/// `AdamTensors`.
struct SgdTensors {
  DType dtype = DType::float32;
  int64_t count = 0;
  void* parameter = nullptr;
  const void* gradient = nullptr;
  void* buffer = nullptr;
  int64_t* step = nullptr;  ///< steps taken before this one; the kernel adds 1
  float* master = nullptr;
};

struct SgdSettings {
  const double* lr = nullptr;  ///< on the device
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  GradientScale gradient{};
};

/// g += wd p;  b = g in the first step, then momentum b + (1 - dampening) g;
/// p -= lr (nesterov ? g + momentum b : b), or lr g without momentum.
extern SASH_API Kernel<void(KernelContext&, std::span<const SgdTensors>, const SgdSettings&)>
    sgd_step;

/// *norm = sqrt(sum of all squares), accumulated in float64 over a fixed partition.
extern SASH_API Kernel<void(KernelContext&, std::span<const FlatTensor>, double* norm)> global_norm;

/// x *= min(max_norm / (*norm + 1e-6), 1). A NaN norm makes NaN.
extern SASH_API
    Kernel<void(KernelContext&, std::span<const FlatTensor>, const double* norm, double max_norm)>
        clip_by_norm;

/// x = min(max(x, -limit), limit); NaN stays.
extern SASH_API Kernel<void(KernelContext&, std::span<const FlatTensor>, double limit)>
    clip_by_value;

/// The bytes that each kernel reads and writes.
inline void add_operands(KernelCall& call, const FlatTensor& x) {
  call.operands.push_back({x.dtype, {x.count}, x.count * size_of(x.dtype)});
}
/// The bytes of a step, which reads the gradient, and reads and writes the parameter and `states`
/// tensors of its state. With a master, it reads and writes the master and writes the parameter.
inline void add_step(KernelCall& call, DType dtype, int64_t count, bool has_master, int states) {
  const int64_t element = size_of(dtype);
  const int64_t kept = has_master ? size_of(DType::float32) : element;
  const int64_t bytes = element + 2 * (1 + states) * kept + (has_master ? element : 0);
  call.operands.push_back({dtype, {count}, count * bytes});
}
inline void add_operands(KernelCall& call, const AdamTensors& x) {
  add_step(call, x.dtype, x.count, x.master, x.max_exp_avg_sq ? 3 : 2);
}
inline void add_operands(KernelCall& call, const SgdTensors& x) {
  add_step(call, x.dtype, x.count, x.master, x.buffer ? 1 : 0);
}

}  // namespace sash::kernels
