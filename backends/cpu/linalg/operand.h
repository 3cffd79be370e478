#pragma once

#include <optional>

#include "../../../tensor/kernels/memory.h"
#include "gemm.h"

namespace sash::cpu {

/// Extents or strides of the batch axes of matrices.
inline Dims leading(const Dims& dims) { return Dims(std::span(dims.begin(), dims.end() - 2)); }

/// Matrices [..., R, C] for `gemm`. If neither of the last two axes has unit stride, they are
/// copied to scratch memory; broadcast batch axes are copied once.
template <class T>
class MatrixOperand {
 public:
  MatrixOperand(KernelContext& context, View view) : view_(view) {
    const int rank = view.rank();
    if (has_unit_stride(view.shape[rank - 2], view.shape[rank - 1], view.strides[rank - 2],
                        view.strides[rank - 1])) {
      return;
    }
    TensorView from = view;
    for (int axis = 0; axis < rank - 2; ++axis) {
      if (view.strides[axis] == 0) from.shape[axis] = 1;
    }
    view_.strides = contiguous_strides(from.shape);
    packed_.emplace(context, from.numel() * static_cast<int64_t>(sizeof(T)));
    view_.data = packed_->template ptr<T>();
    TensorView to = from;
    to.data = view_.data;
    to.strides = view_.strides;
    kernels::copy(context, from, to);
    for (int axis = 0; axis < rank - 2; ++axis) {
      if (from.shape[axis] == 1) view_.strides[axis] = 0;
    }
  }

  Matrix<const T> matrix() const {
    const int rank = view_.rank();
    return {view_.ptr<const T>(), view_.strides[rank - 2], view_.strides[rank - 1]};
  }
  const Strides& strides() const { return view_.strides; }

 private:
  TensorView view_;
  std::optional<Workspace> packed_;
};

}  // namespace sash::cpu
