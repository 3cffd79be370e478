#pragma once

#include <span>
#include <vector>

#include "tensor.h"

namespace sash {

/// Uninitialised elements.
SASH_API Tensor empty(const Shape& shape, const TensorOptions& options = {});
SASH_API Tensor zeros(const Shape& shape, const TensorOptions& options = {});
SASH_API Tensor ones(const Shape& shape, const TensorOptions& options = {});
SASH_API Tensor full(const Shape& shape, Scalar value, const TensorOptions& options = {});
SASH_API Tensor empty_like(const Tensor& like);
SASH_API Tensor zeros_like(const Tensor& like);
SASH_API Tensor ones_like(const Tensor& like);
/// A 0-dimensional tensor.
SASH_API Tensor scalar_tensor(Scalar value, const TensorOptions& options = {});
/// start, start + step, ... below (above, for a negative step) stop. int64 if all three are
/// integers and no dtype is named.
SASH_API Tensor arange(Scalar start, Scalar stop, Scalar step = 1,
                       const TensorOptions& options = {});
/// The n x n identity matrix.
SASH_API Tensor eye(int64_t n, const TensorOptions& options = {});

/// Uniform in [0, 1); a half may round to 1. The generator is that of `manual_seed` on any device.
SASH_API Tensor rand(const Shape& shape, const TensorOptions& options = {});
/// Standard normal.
SASH_API Tensor randn(const Shape& shape, const TensorOptions& options = {});
/// Uniform integers in [low, high); int64 if no dtype is named.
SASH_API Tensor randint(int64_t low, int64_t high, const Shape& shape,
                        const TensorOptions& options = {});

/// A tensor of dtype `dtype` whose elements are copied from host memory.
SASH_API Tensor from_host(const void* elements, const Shape& shape, DType dtype,
                          const TensorOptions& options = {});

/// Copies `values` (row-major) into a tensor of their own type, or of `options.dtype` if named.
template <class T>
Tensor tensor(const std::vector<T>& values, const Shape& shape, const TensorOptions& options = {}) {
  if (sash::numel(shape) != static_cast<int64_t>(values.size())) {
    throw ShapeError("tensor", "a shape of " + std::to_string(values.size()) + " elements",
                     to_string(shape));
  }
  if constexpr (std::is_same_v<T, bool>) {
    const std::vector<uint8_t> bytes(values.begin(), values.end());
    return from_host(bytes.data(), shape, DType::boolean, options);
  } else {
    return from_host(values.data(), shape, dtype_of<T>, options);
  }
}
template <class T>
Tensor tensor(std::initializer_list<T> values, const TensorOptions& options = {}) {
  return tensor(std::vector<T>(values), {static_cast<int64_t>(values.size())}, options);
}

/// The elements of `host`, a CPU tensor, in page-locked memory of the CUDA backend: a contiguous
/// CPU tensor whose copies to CUDA (`to`), like those of its contiguous views, run on the current
/// stream while the host goes on. It may go before they are done; to write to it, wait for them
/// first
/// (`synchronize`). Not differentiable. Throws `DeviceError` if `host` is elsewhere or CUDA cannot
/// be used, and `AutogradError` if `host` requires grad while ops are recorded.
SASH_API Tensor pin_memory(const Tensor& host);

/// Wraps memory of the caller's on `device` without copying; `release` runs when the last tensor
/// that shares it goes.
SASH_API Tensor from_blob(void* data, const Shape& shape, DType dtype, Device device = kCPU,
                          std::function<void()> release = {});

}  // namespace sash
