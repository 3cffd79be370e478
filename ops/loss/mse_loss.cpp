#include "mse_loss.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../autocast.h"
#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/unary.h"
#include "../kernels/loss.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      double)>
    mse_loss_forward{"mse_loss_forward"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, double)>
    mse_loss_backward{"mse_loss_backward"};
}  // namespace kernels

namespace composite {

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  return reduced(square(a - b), reduction);
}

}  // namespace composite

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  if (Autocast cast("mse_loss"); cast) return mse_loss(cast(a), cast(b), reduction);
  check_compatible("mse_loss", a, b);
  check_floating("mse_loss", a);
  check_same_shape("mse_loss", a, b);
  if (reduction == Reduction::none || !use_fused(kernels::mse_loss_forward, a.device())) {
    return composite::mse_loss(a, b, reduction);
  }
  const Tensor x = a.contiguous(), target = b.contiguous();
  const double scale = reduction == Reduction::mean ? 1 / static_cast<double>(a.numel()) : 1;
  const Tensor y = empty({}, a.options());
  KernelContext context = kernel_context(a.device());
  kernels::mse_loss_forward(context, x.tensor_view(), target.tensor_view(), y.tensor_view(), scale);
  return record("mse_loss", {x, target}, y,
                [x = save(x), target = save(target), scale](Backward& pass, const Tensor& g) {
                  const Tensor from = pass(x), to = pass(target);
                  Tensor da;
                  if (pass.create_graph() || !use_fused(kernels::mse_loss_backward, g.device())) {
                    da = (from - to) * g * (2 * scale);
                  } else {
                    da = empty_like(from);
                    KernelContext here = kernel_context(g.device());
                    kernels::mse_loss_backward(here, from.tensor_view(), to.tensor_view(),
                                               g.tensor_view(), da.tensor_view(), scale);
                  }
                  return Gradients{da, pass.needs(1) ? -da : Tensor()};
                });
}

}  // namespace sash
