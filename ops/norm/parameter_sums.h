#pragma once

#include "../../tensor/autograd/node.h"
#include "../kernels/norm.h"

namespace sash::detail {

/// The gradients of a layer norm's weight and bias: a backward kernel sums over chunks of rows
/// while it reads them, and a second one adds the chunks up.
class ParameterSums {
 public:
  /// Of inputs `weight` and `bias` of the op, whose kernel reads x [R, D], with statistics like
  /// `mean`.
  ParameterSums(const Backward& pass, size_t weight, size_t bias, const TensorView& x,
                const Tensor& mean);

  /// What the kernel fills; null if neither gradient is needed.
  TensorView chunks() const;
  /// Sets the gradients, of `options`.
  void add(Gradients& d, const Shape& shape, const TensorOptions& options) const;

 private:
  const Backward& pass_;
  size_t weight_, bias_;
  Tensor chunks_;
};

}  // namespace sash::detail
