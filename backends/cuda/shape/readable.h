#pragma once

#include <optional>

#include "../../../tensor/kernels/memory.h"

namespace sash::cuda {

/// An operand of kernels that do not read every layout: the view, or a contiguous copy of it.
class Readable {
 public:
  Readable(KernelContext& context, View x, bool as_it_is) : view_(x) {
    if (as_it_is) return;
    copy_.emplace(context, x.numel() * size_of(x.dtype));
    view_.data = copy_->ptr<void>();
    view_.strides = contiguous_strides(x.shape);
    kernels::copy(context, x, view_);
  }
  View view() const { return view_; }

 private:
  TensorView view_;
  std::optional<Workspace> copy_;
};

}  // namespace sash::cuda
