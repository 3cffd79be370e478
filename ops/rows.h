#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "../tensor/tensor.h"

/// Views and buffers for kernels over the rows of a matrix.
namespace sash {

/// The contiguous tensor `x` with another shape of as many elements; the null view if it is
/// undefined.
inline TensorView contiguous_view(const Tensor& x, const Shape& shape) {
  if (!x.defined()) return {};
  const TensorView view = x.tensor_view();
  return {view.data, view.dtype, view.device, shape, contiguous_strides(shape)};
}

/// The contiguous tensor `x` as a matrix [rows, columns]; the null view if it is undefined.
inline TensorView matrix_view(const Tensor& x, int64_t rows, int64_t columns) {
  return contiguous_view(x, {rows, columns});
}

/// The contiguous tensor `x` with one axis; the null view if it is undefined.
inline TensorView vector_view(const Tensor& x) {
  return x.defined() ? contiguous_view(x, {x.numel()}) : TensorView();
}

/// Views of optional tensors of a kernel, at most kMost.
template <size_t kMost>
class OptionalViews {
 public:
  OptionalViews() = default;
  OptionalViews(const OptionalViews&) = delete;
  OptionalViews& operator=(const OptionalViews&) = delete;

  /// The view of `x`, which is valid as long as this object; null if `x` is undefined.
  const TensorView* operator()(const Tensor& x) {
    if (!x.defined()) return nullptr;
    tensors_[count_] = x;
    views_[count_] = x.tensor_view();
    return &views_[count_++];
  }

 private:
  std::array<Tensor, kMost> tensors_;
  std::array<TensorView, kMost> views_;
  size_t count_ = 0;
};

/// Whether x starts at a multiple of 16 bytes. Kernels that read vectors need this.
inline bool is_aligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.tensor_view().data) % 16 == 0;
}

/// x if it is contiguous and aligned, else a copy that is.
inline Tensor aligned_contiguous(const Tensor& x) {
  return x.is_contiguous() && !is_aligned(x) ? x.clone() : x.contiguous();
}

/// The options for row statistics of `x`, such as means: float32 for halves, else the dtype of x.
inline TensorOptions row_statistics(const Tensor& x) {
  return {.dtype = is_half(x.dtype()) ? DType::float32 : x.dtype(), .device = x.device()};
}

}  // namespace sash
