#include "linear.h"

#include <cmath>

#include "../../ops/checks.h"
#include "../../ops/linalg/linear.h"
#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"

namespace sash::nn {

Linear::Linear(int64_t in_features, int64_t out_features, LinearOptions options) {
  check_positive("Linear", "in_features", in_features);
  check_positive("Linear", "out_features", out_features);
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));
  weight = register_parameter("weight", empty({out_features, in_features}));
  init::uniform_(weight, -bound, bound);
  if (!options.bias) return;
  bias = register_parameter("bias", empty({out_features}));
  init::uniform_(bias, -bound, bound);
}

Linear::Linear(const Tensor& shared_weight, const Tensor& shared_bias) {
  check_defined("Linear", shared_weight, "a weight");
  check_rank("Linear", shared_weight, 2);
  if (shared_bias.defined()) check_shape("Linear", shared_bias, {shared_weight.shape()[0]});
  weight = register_parameter("weight", shared_weight);
  if (shared_bias.defined()) bias = register_parameter("bias", shared_bias);
}

Tensor Linear::forward(const Tensor& x) {
  check_last_extent("Linear", x, weight.shape()[1]);
  return linear(x, weight, bias);
}

std::string Linear::describe() const {
  return "Linear(" + std::to_string(weight.shape()[1]) + " -> " +
         std::to_string(weight.shape()[0]) + (bias.defined() ? ", bias)" : ")");
}

}  // namespace sash::nn
