#include "../../ops/norm/layer_norm.h"

#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/dropout.h"

#include "../../tensor/factories.h"
#include "../check.h"
#include "layer_norm.h"

namespace sash::nn {

LayerNorm::LayerNorm(int64_t dim, LayerNormOptions options) : LayerNorm(Shape{dim}, options) {}

LayerNorm::LayerNorm(const Shape& shape, LayerNormOptions options)
    : shape_(shape), eps_(options.eps) {
  if (shape.empty()) throw ValueError("LayerNorm", "a shape to normalise", "an empty one");
  for (const int64_t extent : shape) check_positive("LayerNorm", "extent", extent);
  if (!(eps_ > 0)) throw ValueError("LayerNorm", "eps > 0", to_text(eps_));
  if (!options.affine) return;
  weight = register_parameter("weight", ones(shape));
  if (options.bias) bias = register_parameter("bias", zeros(shape));
}

Tensor LayerNorm::forward(const Tensor& x) { return layer_norm(x, shape_, weight, bias, eps_); }

SumAndNorm LayerNorm::add_and_normalise(const Tensor& branch, const Tensor& residual, double p) {
  if (shape_.rank() == 1) return dropout_add_layer_norm(branch, residual, weight, bias, p, eps_);
  const Tensor sum = residual + dropout(branch, p);
  return {sum, forward(sum)};
}

std::string LayerNorm::describe() const {
  std::string text = "LayerNorm(";
  for (int axis = 0; axis < shape_.rank(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape_[axis]);
  }
  return text + (bias.defined() ? ", bias)" : ")");
}

}  // namespace sash::nn
