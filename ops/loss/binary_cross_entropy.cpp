#include "binary_cross_entropy.h"

#include "../autocast.h"
#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/unary.h"

namespace sash {

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BinaryCrossEntropyOptions& options) {
  constexpr const char* op = "binary_cross_entropy_with_logits";
  if (Autocast cast(op); cast) {
    return binary_cross_entropy_with_logits(cast(x), cast(target), options);
  }
  check_compatible(op, x, target);
  check_floating(op, x);
  check_same_shape(op, x, target);
  if (!options.pos_weight.defined()) {
    return reduced(softplus(x) - x * target, options.reduction);
  }
  check_compatible(op, x, options.pos_weight);
  if (broadcast_shapes(x.shape(), options.pos_weight.shape(), op) != x.shape()) {
    throw ShapeError(op, "a pos_weight that broadcasts to " + to_string(x.shape()),
                     to_string(options.pos_weight.shape()));
  }
  const Tensor factor = target * (options.pos_weight.detach() - 1) + 1;
  return reduced((1 - target) * x + factor * softplus(-x), options.reduction);
}

}  // namespace sash
