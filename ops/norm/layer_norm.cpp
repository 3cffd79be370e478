#include "layer_norm.h"

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../autocast.h"
#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/unary.h"
#include "../kernels/norm.h"
#include "../reduce/reduce.h"
#include "../rows.h"
#include "normalized_shape.h"
#include "parameter_sums.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, const TensorView&, const TensorView&, double)>
    layer_norm_forward{"layer_norm_forward"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, const TensorView&, const TensorView&, const TensorView&)>
    layer_norm_backward{"layer_norm_backward"};
}  // namespace kernels

namespace {

constexpr const char* kLayerNorm = "layer_norm";

void check_arguments(const Tensor& x, const Shape& normalized, const Tensor& weight,
                     const Tensor& bias, double eps) {
  check_normalized(kLayerNorm, x, normalized, eps);
  for (const Tensor* parameter : {&weight, &bias}) {
    if (!parameter->defined()) continue;
    check_compatible(kLayerNorm, x, *parameter);
    check_shape(kLayerNorm, *parameter, normalized);
  }
}

// x as the kernels' matrix [rows, columns].
struct Matrix {
  int64_t rows = 1;
  int64_t columns = 1;

  Matrix(const Shape& shape, const Shape& normalized) : columns(numel(normalized)) {
    for (int i = 0; i < shape.rank() - normalized.rank(); ++i) rows *= shape[i];
  }
};

// What backward needs, all contiguous.
struct LayerNormOperands {
  Tensor x, weight, mean, rstd;
};

Gradients fused_backward(const LayerNormOperands& in, const Tensor& grad, const Shape& normalized,
                         const Backward& pass) {
  const auto [rows, columns] = Matrix(in.x.shape(), normalized);
  const Tensor g = grad.contiguous();
  const TensorOptions options = g.options();
  Gradients d(3);
  if (pass.needs(0)) d[0] = empty(in.x.shape(), options);
  const TensorView x = matrix_view(in.x, rows, columns);
  const detail::ParameterSums sums(pass, 1, 2, x, in.mean);
  KernelContext context = kernel_context(g.device());
  kernels::layer_norm_backward(context, x, vector_view(in.weight), vector_view(in.mean),
                               vector_view(in.rstd), matrix_view(g, rows, columns),
                               matrix_view(d[0], rows, columns), sums.chunks());
  sums.add(d, normalized, options);
  return d;
}

Gradients composite_backward(const Tensor& x, const Tensor& weight, const Tensor& g,
                             const Shape& normalized, double eps, const Backward& pass) {
  Gradients d(3);
  if (pass.needs(0) || pass.needs(1)) {
    const Tensor inputs[] = {x, weight};
    Gradients found = differentiate(
        [&](std::span<const Tensor> in) {
          return composite::layer_norm(in[0], normalized, in[1], {}, eps);
        },
        inputs, g, pass);
    d[0] = found[0];
    d[1] = found[1];
  }
  if (pass.needs(2)) d[2] = sum_to(g, normalized);
  return d;
}

}  // namespace

namespace composite {

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  Dims axes;
  for (int i = -normalized_shape.rank(); i < 0; ++i) axes.push_back(i);
  const Tensor centred = x - mean(x, axes, true);
  Tensor y = centred * rsqrt(mean(square(centred), axes, true) + eps);
  if (weight.defined()) y = y * weight;
  if (bias.defined()) y = y + bias;
  return y;
}

}  // namespace composite

Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  if (Autocast cast(kLayerNorm); cast) {
    return layer_norm(cast(input), normalized_shape, cast(weight), cast(bias), eps);
  }
  check_arguments(input, normalized_shape, weight, bias, eps);
  if (!use_fused(kernels::layer_norm_forward, input.device())) {
    return composite::layer_norm(input, normalized_shape, weight, bias, eps);
  }
  const Tensor x = input.contiguous();
  const Tensor w = weight.defined() ? weight.contiguous() : weight;
  const Tensor b = bias.defined() ? bias.contiguous() : bias;
  const auto [rows, columns] = Matrix(x.shape(), normalized_shape);
  const Tensor y = empty_like(x);
  const Tensor mean = empty({rows}, row_statistics(x));
  const Tensor rstd = empty({rows}, row_statistics(x));
  KernelContext context = kernel_context(x.device());
  kernels::layer_norm_forward(context, matrix_view(x, rows, columns), vector_view(w),
                              vector_view(b), matrix_view(y, rows, columns), vector_view(mean),
                              vector_view(rstd), eps);
  return record(
      kLayerNorm, {x, w, b}, y,
      [x = save(x), w = save(w), mean = save(mean), rstd = save(rstd), shape = normalized_shape,
       eps](Backward& pass, const Tensor& g) {
        if (!pass.create_graph() && use_fused(kernels::layer_norm_backward, g.device())) {
          return fused_backward({pass(x), pass(w), pass(mean), pass(rstd)}, g, shape, pass);
        }
        return composite_backward(pass(x), pass(w), g, shape, eps, pass);
      });
}

}  // namespace sash
