#include "glu.h"

#include "../kernels/glu.h"
#include "../op.h"
#include "gate.h"
#include "gelu.h"

namespace sash {

namespace kernels {
constinit decltype(glu_forward) glu_forward{"glu_forward"};
constinit decltype(glu_backward) glu_backward{"glu_backward"};
}  // namespace kernels

kernels::Gate detail::gate_of(GluKind kind) {
  switch (kind) {
    case GluKind::swiglu:
      return kernels::Gate::silu;
    case GluKind::geglu:
      return kernels::Gate::gelu;
    case GluKind::geglu_tanh:
      return kernels::Gate::gelu_tanh;
    case GluKind::clamped_swiglu:
      return kernels::Gate::clamped_silu;
  }
  throw ValueError("glu", "a GluKind", std::to_string(static_cast<int>(kind)));
}

namespace {

using detail::gate_of;
using kernels::Gate;

void check_arguments(const Tensor& x) {
  check_floating("glu", x);
  check_min_rank("glu", x, 1);
  if (x.size(-1) % 2 == 0) return;
  throw ShapeError("glu", "an even last extent, gates and values", to_string(x.shape()));
}

int64_t rows_of(const Tensor& x) { return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1); }

}  // namespace

Tensor composite::glu(const Tensor& x, GluKind kind) {
  const int64_t width = x.size(-1) / 2;
  const Tensor a = x.narrow(-1, 0, width), b = x.narrow(-1, width, width);
  switch (gate_of(kind)) {
    case Gate::silu:
      return silu(a) * b;
    case Gate::gelu:
      return sash::gelu(a) * b;
    case Gate::gelu_tanh:
      return sash::gelu(a, GeluApproximation::tanh) * b;
    case Gate::clamped_silu:
      break;
  }
  // As in the kernels, and unlike `clamp`, a NaN is no constant.
  constexpr double limit = kernels::kGateLimit;
  const Tensor gate = where(ge(a, limit), limit, a);
  const Tensor value = where(ge(b, limit), limit, where(le(b, -limit), -limit, b));
  return gate * sigmoid(gate * kernels::kGateSlope) * (value + 1.0);
}

Tensor glu(const Tensor& input, GluKind kind) {
  check_arguments(input);
  if (!use_fused(kernels::glu_forward, input.device())) return composite::glu(input, kind);
  const Gate gate = gate_of(kind);
  const Tensor x = input.contiguous();
  const int64_t rows = rows_of(x), width = x.size(-1) / 2;
  const Tensor y = empty(with_last(x, width), x.options());
  run_kernel(kernels::glu_forward, matrix_view(x, rows, 2 * width), matrix_view(y, rows, width),
             gate);
  return record("glu", {x}, y, [x = save(x), kind, gate](Backward& pass, const Tensor& g) {
    const Tensor in = pass(x);
    if (pass.create_graph()) {
      return gradients_of_composite(pass, g, composite::glu, std::array{in}, kind);
    }
    const int64_t count = rows_of(in), half = in.size(-1) / 2;
    const Tensor dy = g.contiguous(), dx = empty(in.shape(), g.options());
    run_kernel(kernels::glu_backward, matrix_view(in, count, 2 * half),
               matrix_view(dy, count, half), matrix_view(dx, count, 2 * half), gate);
    return Gradients{dx};
  });
}

}  // namespace sash
