#include "linear.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../autocast.h"
#include "../checks.h"
#include "../kernels/linalg.h"
#include "../reduce/reduce.h"
#include "linear_parts.h"
#include "matmul.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView*,
                      const TensorView&)>
    linear_forward{"linear_forward"};
}  // namespace kernels

namespace {

Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const NoGradGuard no_grad;
  const Tensor rows = detail::flatten_rows(x);
  Shape shape = x.shape();
  shape[x.rank() - 1] = weight.size(0);
  Tensor y = empty(shape, x.options());
  KernelContext context = kernel_context(x.device());
  const TensorView out = y.view({rows.size(0), weight.size(0)}).tensor_view();
  if (bias.defined()) {
    const Tensor row = bias.contiguous();
    const TensorView bias_view = row.tensor_view();
    kernels::linear_forward(context, rows.tensor_view(), weight.tensor_view(), &bias_view, out);
  } else {
    kernels::linear_forward(context, rows.tensor_view(), weight.tensor_view(), nullptr, out);
  }
  return y;
}

}  // namespace

namespace detail {

void check_linear(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  bool integers) {
  check_compatible(op, x, weight);
  integers ? check_not_bool(op, x) : check_floating(op, x);
  check_min_rank(op, x, 1);
  check_rank(op, weight, 2);
  if (x.size(-1) != weight.size(1)) {
    throw ShapeError(op, "x [..., in] and weight [out, in] with one in",
                     to_string(x.shape()) + " and " + to_string(weight.shape()));
  }
  if (!bias.defined()) return;
  check_compatible(op, x, bias);
  if (bias.shape() != Shape{weight.size(0)}) {
    throw ShapeError(op, "bias " + to_string({weight.size(0)}), to_string(bias.shape()));
  }
}

}  // namespace detail

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (Autocast cast("linear"); cast) return linear(cast(x), cast(weight), cast(bias));
  detail::check_linear("linear", x, weight, bias, true);
  if (is_integral(x.dtype())) {
    const Tensor y = matmul(x, weight.mT());
    return bias.defined() ? y + bias : y;
  }
  return record(
      "linear", {x, weight, bias}, forward(x, weight, bias),
      [x = save_if(weight.requires_grad(), x), weight = save_if(x.requires_grad(), weight),
       shape = x.shape()](Backward& pass, const Tensor& g) {
        const Tensor rows = detail::flatten_rows(g);
        Gradients gradients(3);
        const Tensor in = pass.needs(1) ? detail::flatten_rows(pass(x)) : Tensor();
        pass.beside(gradients, {1, 2}, {rows, in}, [&] {
          if (pass.needs(1)) gradients[1] = matmul(rows.mT(), in);
          if (pass.needs(2)) gradients[2] = sum(rows, {0});
        });
        if (pass.needs(0)) gradients[0] = matmul(rows, pass(weight)).view(shape);
        return gradients;
      });
}

}  // namespace sash
