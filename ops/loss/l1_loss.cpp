#include "l1_loss.h"

#include "../autocast.h"
#include "../checks.h"
#include "../elementwise/unary.h"

namespace sash {

Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  if (Autocast cast("l1_loss"); cast) return l1_loss(cast(a), cast(b), reduction);
  check_compatible("l1_loss", a, b);
  check_floating("l1_loss", a);
  check_same_shape("l1_loss", a, b);
  return reduced(abs(a - b), reduction);
}

}  // namespace sash
