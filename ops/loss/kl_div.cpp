#include "kl_div.h"

#include <limits>

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

constexpr double kImpossible = -std::numeric_limits<double>::infinity();  // the logarithm of 0

/// t x, 0 where t is 0 and x the logarithm of 0 too.
Tensor times_logarithm(const Tensor& t, const Tensor& x) {
  return t * masked_fill(x, logical_and(eq(t, 0), eq(x, kImpossible)), 0);
}

/// exp(t) (t - x), 0 where t is the logarithm of 0.
Tensor of_logarithms(const Tensor& t, const Tensor& x) {
  return exp(t) * masked_fill(t - x, eq(t, kImpossible), 0);
}

}  // namespace

Tensor kl_div(const Tensor& x, const Tensor& target, const KLDivOptions& options) {
  if (Autocast cast("kl_div"); cast) return kl_div(cast(x), cast(target), options);
  check_compatible("kl_div", x, target);
  check_floating("kl_div", x);
  check_same_shape("kl_div", x, target);
  const Tensor terms = options.log_target ? of_logarithms(target, x)
                                          : times_log(target) - times_logarithm(target, x);
  return reduced(terms, options.reduction);
}

}  // namespace sash
