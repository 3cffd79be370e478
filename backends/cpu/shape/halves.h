#pragma once

#include <optional>

#include "../../../core/backend/kernel.h"
#include "../../../tensor/kernels/memory.h"

/// Float32 copies of halves, for kernels that compute in float32. Other dtypes are not copied.
namespace sash::cpu {

/// A contiguous float32 tensor in scratch memory.
class FloatCopy {
 public:
  FloatCopy(const KernelContext& context, const Shape& shape, Device device)
      : memory_(context, numel(shape) * static_cast<int64_t>(sizeof(float))),
        view_{memory_.ptr<void>(), DType::float32, device, shape, contiguous_strides(shape)} {}
  const TensorView& view() const { return view_; }

 private:
  Workspace memory_;
  TensorView view_;
};

/// An operand of a kernel. Broadcast elements are converted once.
class FloatOperand {
 public:
  FloatOperand(KernelContext& context, View x) : view_(x) {
    if (!is_half(x.dtype)) return;
    TensorView from = x;
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (x.strides[axis] == 0) from.shape[axis] = 1;
    }
    copy_.emplace(context, from.shape, x.device);
    kernels::copy(context, from, copy_->view());
    view_ = copy_->view();
    view_.shape = x.shape;
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (from.shape[axis] == 1) view_.strides[axis] = 0;
    }
  }
  FloatOperand(const FloatOperand&) = delete;
  FloatOperand& operator=(const FloatOperand&) = delete;
  const TensorView& view() const { return view_; }

 private:
  std::optional<FloatCopy> copy_;
  TensorView view_;
};

/// A result of a kernel. `write` rounds it to its dtype.
class FloatResult {
 public:
  FloatResult(KernelContext& context, View y) : context_(context), to_(y), view_(y) {
    if (!is_half(y.dtype)) return;
    copy_.emplace(context, y.shape, y.device);
    view_ = copy_->view();
  }
  FloatResult(const FloatResult&) = delete;
  FloatResult& operator=(const FloatResult&) = delete;
  const TensorView& view() const { return view_; }
  void write() {
    if (copy_) kernels::copy(context_, view_, to_);
  }

 private:
  KernelContext& context_;
  const TensorView& to_;
  std::optional<FloatCopy> copy_;
  TensorView view_;
};

}  // namespace sash::cpu
