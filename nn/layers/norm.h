#pragma once

#include "../../ops/norm/dropout_add_layer_norm.h"
#include "../module.h"

namespace sash::nn {

/// What transformers ask of a `LayerNorm` or `RMSNorm`: to normalise the last axes of a tensor, or
/// of a sum that it computes in the same pass.
class SASH_API Norm : public Module {
 public:
  /// sum = residual + dropout(branch, p) and the norm of this sum, in one pass over memory where a
  /// kernel does both. A norm with hooks is called by itself.
  SumAndNorm add(const Tensor& branch, const Tensor& residual, double p = 0);

  Tensor weight;  ///< undefined without one
  Tensor bias;    ///< undefined without one

 protected:
  /// The same without hooks.
  virtual SumAndNorm add_and_normalise(const Tensor& branch, const Tensor& residual, double p) = 0;
};

}  // namespace sash::nn
