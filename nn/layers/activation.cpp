#include "activation.h"

namespace sash::nn {

Tensor GELU::forward(const Tensor& x) { return gelu(x, approximation_); }

std::string GELU::describe() const {
  return approximation_ == GeluApproximation::none ? "GELU" : "GELU(tanh)";
}

}  // namespace sash::nn
