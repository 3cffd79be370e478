#pragma once

#include "../../kernels/selected_attention.h"
#include "../../op.h"
#include "attention_call.h"

/// Attention over blocks that data selects, with kernels of its own.
namespace sash {

/// Whether kernels of the device take selected blocks of these heads.
bool has_selected_kernels(const AttentionTensors& x);

/// The parameters of a call that selects; borrows from it.
class SelectedParams {
 public:
  explicit SelectedParams(const AttentionCall& call);
  const kernels::SelectedAttentionParams& get() const { return params_; }

 private:
  OptionalViews<1> views_;
  Tensor index_;
  kernels::SelectedAttentionParams params_;
};

}  // namespace sash
