#include "gelu.h"

#include <numbers>

#include "../../tensor/autograd/gradient_memory.h"
#include "../kernels/elementwise.h"
#include "../op.h"

namespace sash {

namespace kernels {
constinit decltype(gelu_forward) gelu_forward{"gelu_forward"};
constinit decltype(gelu_backward) gelu_backward{"gelu_backward"};
}  // namespace kernels

Tensor composite::gelu(const Tensor& x, GeluApproximation approximation) {
  if (approximation == GeluApproximation::none) {
    return x * (erf(x * (1 / std::numbers::sqrt2)) + 1.0) * 0.5;
  }
  constexpr double k = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  return x * (tanh((x + x * square(x) * 0.044715) * k) + 1.0) * 0.5;
}

Tensor gelu(const Tensor& x, GeluApproximation approximation) {
  check_floating("gelu", x);
  if (!use_fused(kernels::gelu_forward, x.device())) return composite::gelu(x, approximation);
  const bool tanh = approximation == GeluApproximation::tanh;
  const Tensor y = empty_like(x);
  run_kernel(kernels::gelu_forward, x, y, tanh);
  return record(
      "gelu", {x}, y, [x = save(x), approximation, tanh](Backward& pass, const Tensor& g) {
        const Tensor in = pass(x);
        if (pass.create_graph() || !use_fused(kernels::gelu_backward, g.device())) {
          return gradients_of_composite(pass, g, composite::gelu, std::array{in}, approximation);
        }
        const Tensor dx = overwritable(g);
        run_kernel(kernels::gelu_backward, in, g, dx, tanh);
        return Gradients{dx};
      });
}

}  // namespace sash
