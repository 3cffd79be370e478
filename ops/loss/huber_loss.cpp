#include "huber_loss.h"

#include <cmath>

#include "../autocast.h"
#include "../checks.h"
#include "../elementwise/binary.h"

namespace sash {

Tensor huber_loss(const Tensor& a, const Tensor& b, const HuberLossOptions& options) {
  if (Autocast cast("huber_loss"); cast) return huber_loss(cast(a), cast(b), options);
  check_compatible("huber_loss", a, b);
  check_floating("huber_loss", a);
  check_same_shape("huber_loss", a, b);
  if (!(options.delta > 0) || std::isinf(options.delta)) {
    throw ValueError("huber_loss", "a positive, finite delta", to_text(options.delta));
  }
  const Tensor d = a - b, clamped = clamp(d, -options.delta, options.delta);
  return reduced(clamped * (d - clamped * 0.5), options.reduction);
}

}  // namespace sash
