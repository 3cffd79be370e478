#include "normalize.h"

#include "../op.h"
#include "../reduce/norm.h"

namespace sash {

Tensor normalize(const Tensor& x, const NormalizeOptions& options) {
  check_floating("normalize", x);
  check_not_negative("normalize", "eps", options.eps);
  if (is_half(x.dtype())) return normalize(x.to(DType::float32), options).to(x.dtype());
  return x / clamp(norm(x, options.p, {options.axis}, true), options.eps);
}

}  // namespace sash
