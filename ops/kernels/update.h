#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "../../core/backend/kernel.h"
#include "../../core/dtype.h"
#include "../../core/export.h"

/// Multi-tensor kernels of a training step: one call covers all parameters. Memory is contiguous
/// and floating; pointers are device memory, those to numbers that change each step too, so that
/// nothing waits for the host.
namespace sash::kernels {

/// Contiguous elements to read or overwrite.
struct FlatTensor {
  DType dtype = DType::float32;
  int64_t count = 0;
  void* data = nullptr;
};

/// What a step multiplies every gradient with before it uses it:
///
///     min(max_norm / (norm / loss_scale + 1e-6), 1) / loss_scale
///
/// An infinite max_norm clips nothing, whatever the norm.
/// With a loss scale, a step whose norm is NaN or infinite changes nothing and is not counted.
struct GradientScale {
  const double* norm = nullptr;  ///< of all gradients, on the device; null: the factor is 1
  double max_norm = std::numeric_limits<double>::infinity();
  const double* loss_scale = nullptr;  ///< what the loss was multiplied with, on the device
  bool only_skips = false;  ///< whether the factor is 1, since gradients are scaled already

  SASH_HOST_DEVICE bool skips() const { return loss_scale && !(*norm - *norm == 0); }
  /// A NaN norm makes NaN, if gradients are clipped.
  SASH_HOST_DEVICE double factor() const {
    if (!norm || only_skips) return 1;
    const double scale = loss_scale ? *loss_scale : 1;
    if (max_norm - max_norm != 0) return 1 / scale;  // infinite
    const double clip = max_norm / (*norm / scale + 1e-6);
    return (clip >= 1 ? 1 : clip) / scale;
  }
};

/// *norm = sqrt(sum of all squares), accumulated in float64 over a fixed partition.
extern SASH_API Kernel<void(KernelContext&, std::span<const FlatTensor>, double* norm)> global_norm;

/// x *= min(max_norm / (*norm + 1e-6), 1). A NaN norm makes NaN.
extern SASH_API
    Kernel<void(KernelContext&, std::span<const FlatTensor>, const double* norm, double max_norm)>
        clip_by_norm;

/// x = min(max(x, -limit), limit); NaN stays.
extern SASH_API Kernel<void(KernelContext&, std::span<const FlatTensor>, double limit)>
    clip_by_value;

/// Bytes as each kernel reads and writes them.
inline void add_operands(KernelCall& call, const FlatTensor& x) {
  call.operands.push_back({x.dtype, {x.count}, x.count * size_of(x.dtype)});
}

}  // namespace sash::kernels
