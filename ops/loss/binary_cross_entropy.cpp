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
    return binary_cross_entropy_with_logits(cast(x), cast(target),
                                            {cast(options.pos_weight), options.reduction});
  }
  check_compatible(op, x, target);
  check_floating(op, x);
  check_same_shape(op, x, target);
  const Tensor& weight = options.pos_weight;
  if (weight.defined()) {
    check_compatible(op, x, weight);
    if (broadcast_shapes(x.shape(), weight.shape(), op) != x.shape()) {
      throw ShapeError(op, "a pos_weight that broadcasts to " + to_string(x.shape()),
                       to_string(weight.shape()));
    }
  }
  // -ln p = softplus(-x) and -ln(1 - p) = softplus(x): nothing cancels for logits of either sign.
  Tensor positive = target * softplus(-x);
  if (weight.defined()) positive = weight.detach() * positive;
  return reduced(positive + (1 - target) * softplus(x), options.reduction);
}

}  // namespace sash
