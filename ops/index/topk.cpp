#include "topk.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../checks.h"
#include "../kernels/index.h"
#include "gather.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&, int)>
    topk{"topk"};
}  // namespace kernels

TopK topk(const Tensor& x, int64_t k, int64_t axis) {
  constexpr const char* op = "topk";
  check_defined(op, x);
  check_numeric(op, x);
  check_min_rank(op, x, 1);
  const int at = normalize_axis(axis, x.rank(), op);
  Shape shape = x.shape();
  if (k < 0 || k > shape[at]) {
    throw ValueError(op, "k in [0, " + std::to_string(shape[at]) + "]", std::to_string(k));
  }
  shape[at] = k;
  const Tensor values = empty(shape, x.options());
  const Tensor indices = empty(shape, {.dtype = DType::int64, .device = x.device()});
  KernelContext context = kernel_context(x.device());
  kernels::topk(context, x.tensor_view(), values.tensor_view(), indices.tensor_view(), at);
  record(op, {x}, values,
         [from = x.shape(), at, indices = save(indices)](Backward& pass, const Tensor& g) {
           return Gradients{scatter_add(zeros(from, g.options()), at, pass(indices), g)};
         });
  return {values, indices};
}

}  // namespace sash
