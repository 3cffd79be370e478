#include "activation.h"

#include "../../ops/elementwise/unary.h"

namespace sash::nn {

Tensor ReLU::forward(const Tensor& x) { return relu(x); }
Tensor Tanh::forward(const Tensor& x) { return tanh(x); }
Tensor Sigmoid::forward(const Tensor& x) { return sigmoid(x); }
Tensor SiLU::forward(const Tensor& x) { return silu(x); }
Tensor GELU::forward(const Tensor& x) { return gelu(x, approximation_); }

std::string GELU::describe() const {
  return approximation_ == GeluApproximation::none ? "GELU" : "GELU(tanh)";
}

}  // namespace sash::nn
