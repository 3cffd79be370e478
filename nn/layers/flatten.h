#pragma once

#include "../module.h"

namespace sash::nn {

/// `x.flatten(first_axis, last_axis)`, for `Sequential`: by default images [N, C, H, W] become rows
/// [N, C H W].
class SASH_API Flatten : public Module {
 public:
  explicit Flatten(int64_t first_axis = 1, int64_t last_axis = -1)
      : first_axis_(first_axis), last_axis_(last_axis) {}

  Tensor forward(const Tensor& x) override;

 private:
  int64_t first_axis_, last_axis_;
};

}  // namespace sash::nn
