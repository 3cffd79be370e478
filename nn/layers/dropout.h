#pragma once

#include "../module.h"

namespace sash::nn {

/// While training, sets elements to zero with probability p and scales the others by 1 / (1 - p);
/// in evaluation, the identity (Srivastava et al., 2014).
class SASH_API Dropout : public Module {
 public:
  /// `ValueError` unless p lies in [0, 1].
  explicit Dropout(double p = 0.5);

  Tensor forward(const Tensor& x) override;
  std::string describe() const override;
  double p() const { return p_; }

 private:
  double p_;
};

}  // namespace sash::nn
