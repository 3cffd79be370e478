#include "kl_div.h"

#include "../autocast.h"
#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/compare.h"
#include "../elementwise/where.h"

namespace sash {
namespace {

/// t ln t, with the value and all derivatives 0 where t is 0.
Tensor times_log(const Tensor& t) {
  const Tensor none = eq(t, 0);
  return masked_fill(t, none, 0) * log(masked_fill(t, none, 1));
}

}  // namespace

Tensor kl_div(const Tensor& x, const Tensor& target, const KLDivOptions& options) {
  if (Autocast cast("kl_div"); cast) return kl_div(cast(x), cast(target), options);
  check_compatible("kl_div", x, target);
  check_floating("kl_div", x);
  check_same_shape("kl_div", x, target);
  const Tensor terms =
      options.log_target ? exp(target) * (target - x) : times_log(target) - target * x;
  return reduced(terms, options.reduction);
}

}  // namespace sash
