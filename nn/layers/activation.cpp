#include "activation.h"

#include "../../ops/elementwise/unary.h"
#include "../../ops/norm/softmax.h"

namespace sash::nn {

Tensor ReLU::forward(const Tensor& x) { return relu(x); }
Tensor Tanh::forward(const Tensor& x) { return tanh(x); }
Tensor Sigmoid::forward(const Tensor& x) { return sigmoid(x); }
Tensor SiLU::forward(const Tensor& x) { return silu(x); }
Tensor Softplus::forward(const Tensor& x) { return softplus(x); }
Tensor Softmax::forward(const Tensor& x) { return softmax(x, axis_); }
Tensor LogSoftmax::forward(const Tensor& x) { return log_softmax(x, axis_); }
Tensor GELU::forward(const Tensor& x) { return gelu(x, approximation_); }

std::string Softmax::describe() const { return "Softmax(" + std::to_string(axis_) + ")"; }
std::string LogSoftmax::describe() const { return "LogSoftmax(" + std::to_string(axis_) + ")"; }

std::string GELU::describe() const {
  return approximation_ == GeluApproximation::none ? "GELU" : "GELU(tanh)";
}

}  // namespace sash::nn
