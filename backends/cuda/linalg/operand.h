#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <utility>

#include "../../../core/backend/kernel.h"
#include "../../../core/backend/tensor_view.h"
#include "../../../tensor/kernels/memory.h"
#include "gemm.h"

/// Views as operands of cuBLAS.
namespace sash::cuda {

/// The last two axes as a cuBLAS matrix. Returns nullopt if cuBLAS cannot read them, for example
/// because neither axis has unit stride.
inline std::optional<Matrix> as_matrix(View view) {
  const int row = view.rank() - 2, col = view.rank() - 1;
  const int64_t rows = view.shape[row], cols = view.shape[col];
  const int64_t down = view.strides[row], across = view.strides[col];
  if ((cols == 1 || across == 1) && (rows == 1 || down >= cols)) {
    return Matrix{.data = view.data, .ld = rows == 1 ? cols : down};
  }
  if ((rows == 1 || down == 1) && (cols == 1 || across >= rows)) {
    return Matrix{.data = view.data, .ld = cols == 1 ? rows : across, .transposed = true};
  }
  return std::nullopt;
}

/// The view with its last two axes exchanged.
inline TensorView transposed(TensorView view) {
  const int last = view.rank() - 1;
  std::swap(view.shape[last], view.shape[last - 1]);
  std::swap(view.strides[last], view.strides[last - 1]);
  return view;
}

/// An operand that cuBLAS can read: the view, or a contiguous copy if `as_matrix` fails. Broadcast
/// batch axes are copied once and stay broadcast.
class Operand {
 public:
  Operand(KernelContext& context, TensorView view) : view_(std::move(view)) {
    if (as_matrix(view_)) return;
    TensorView from = view_, to = view_;
    for (int axis = 0; axis < view_.rank() - 2; ++axis) {
      if (view_.strides[axis] == 0) from.shape[axis] = to.shape[axis] = 1;
    }
    to.strides = contiguous_strides(to.shape);
    copy_.emplace(context, to.numel() * size_of(to.dtype));
    to.data = copy_->ptr<void>();
    kernels::copy(context, from, to);
    for (int axis = 0; axis < view_.rank() - 2; ++axis) {
      if (to.shape[axis] == 1) to.strides[axis] = 0;
    }
    view_.data = to.data;
    view_.strides = to.strides;
  }

  const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  std::optional<Workspace> copy_;
};

/// The alignment in bytes of every matrix of the view, at most 256.
inline int64_t alignment(View view) {
  auto bits = reinterpret_cast<uintptr_t>(view.data) | 256;
  for (int axis = 0; axis < view.rank() - 2; ++axis) {
    bits |= static_cast<uintptr_t>(view.strides[axis] * size_of(view.dtype));
  }
  return int64_t{1} << std::countr_zero(bits);
}

}  // namespace sash::cuda
