#include "parameter_sums.h"

#include "../../tensor/factories.h"
#include "../rows.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, int64_t&)> layer_norm_chunks{
    "layer_norm_chunks"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&)>
    add_layer_norm_chunks{"add_layer_norm_chunks"};
}  // namespace kernels

namespace detail {

ParameterSums::ParameterSums(const Backward& pass, size_t weight, size_t bias, const TensorView& x,
                             const Tensor& mean)
    : pass_(pass), weight_(weight), bias_(bias) {
  if (!pass.needs(weight) && !pass.needs(bias)) return;
  int64_t count = 0;
  KernelContext context = kernel_context(x.device);
  kernels::layer_norm_chunks(context, x, count);
  chunks_ = empty({count, 2, x.shape[1]}, mean.options());
}

TensorView ParameterSums::chunks() const {
  return chunks_.defined() ? chunks_.tensor_view() : TensorView();
}

void ParameterSums::add(Gradients& d, const Shape& shape, const TensorOptions& options) const {
  if (!chunks_.defined()) return;
  pass_.beside(d, {weight_, bias_}, {chunks_}, [&] {
    for (const size_t i : {weight_, bias_}) {
      if (pass_.needs(i)) d[i] = empty(shape, options);
    }
    KernelContext context = kernel_context(chunks_.device());
    kernels::add_layer_norm_chunks(context, chunks_.tensor_view(), vector_view(d[weight_]),
                                   vector_view(d[bias_]));
  });
}

}  // namespace detail
}  // namespace sash
