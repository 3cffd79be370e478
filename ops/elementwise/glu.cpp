#include "glu.h"

#include "../checks.h"
#include "binary.h"
#include "gelu.h"
#include "unary.h"

namespace sash {
namespace {

void check_arguments(const Tensor& x) {
  check_defined("glu", x);
  check_floating("glu", x);
  check_min_rank("glu", x, 1);
  if (x.size(-1) % 2 == 0) return;
  throw ShapeError("glu", "an even last extent, gates and values", to_string(x.shape()));
}

}  // namespace

namespace composite {

Tensor glu(const Tensor& x, GluKind kind) {
  const int64_t width = x.size(-1) / 2;
  const Tensor a = x.narrow(-1, 0, width), b = x.narrow(-1, width, width);
  switch (kind) {
    case GluKind::swiglu:
      return silu(a) * b;
    case GluKind::geglu:
      return sash::gelu(a) * b;
    case GluKind::geglu_tanh:
      return sash::gelu(a, GeluApproximation::tanh) * b;
    case GluKind::clamped_swiglu:
      break;
  }
  const Tensor gate = clamp(a, std::nullopt, 7.0);
  return gate * sigmoid(gate * 1.702) * (clamp(b, -7.0, 7.0) + 1.0);
}

}  // namespace composite

Tensor glu(const Tensor& x, GluKind kind) {
  check_arguments(x);
  return composite::glu(x, kind);
}

}  // namespace sash
