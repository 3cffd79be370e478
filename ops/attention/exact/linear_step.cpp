#include "linear_step.h"

#include "../../elementwise/gate.h"
#include "../../kernels/linalg.h"
#include "../../linalg/linear.h"
#include "../../linalg/linear_parts.h"
#include "../../op.h"

namespace sash {

constinit decltype(kernels::linear_step) kernels::linear_step{"linear_step"};

namespace {

constexpr const char* kLinearStep = "linear_step";
constexpr int64_t kMostStepRows = 4, kMostBytes = 47 << 10;

Shape result_shape(const Tensor& x, const Tensor& weight, const LinearStepOptions& options) {
  return with_last(x, options.gate ? weight.size(0) / 2 : weight.size(0));
}

void check_arguments(const Tensor& x, const Tensor& weight, const LinearStepOptions& options) {
  detail::check_linear(kLinearStep, x, weight, options.bias);
  check_parameter(kLinearStep, x, options.norm_weight, {weight.size(1)});
  if (options.gate && weight.size(0) % 2 != 0) {
    throw ShapeError(kLinearStep, "an even out, gates and values", to_string(weight.shape()));
  }
  check_parameter(kLinearStep, x, options.residual, result_shape(x, weight, options));
}

}  // namespace

bool has_linear_step_kernel(const Tensor& x, const Tensor& weight) {
  const int64_t in = weight.size(1), rows = in > 0 ? x.numel() / in : 0;
  const int64_t bytes = in * static_cast<int64_t>(size_of(x.dtype()));
  return kernels::linear_step.has(x.device().type) && x.dtype() == weight.dtype() &&
         x.dtype() != DType::float64 && rows > 0 && rows <= kMostStepRows && bytes % 16 == 0 &&
         rows * bytes <= kMostBytes && x.is_contiguous() && weight.is_contiguous() &&
         is_aligned(x) && is_aligned(weight);
}

namespace composite {

Tensor linear_step(const Tensor& x, const Tensor& weight, const LinearStepOptions& options) {
  const NoGradGuard no_grad;
  check_arguments(x, weight, options);
  const Tensor& norm = options.norm_weight;
  Tensor y = linear(norm.defined() ? sash::rms_norm(x, norm.shape(), norm, options.norm) : x,
                    weight, options.bias);
  if (options.gate) y = sash::glu(y, *options.gate);
  return options.residual.defined() ? y + options.residual : y;
}

}  // namespace composite

Tensor linear_step(const Tensor& x, const Tensor& weight, const LinearStepOptions& options) {
  check_arguments(x, weight, options);
  if (!has_linear_step_kernel(x, weight)) return composite::linear_step(x, weight, options);
  const NoGradGuard no_grad;
  const Tensor y = empty(result_shape(x, weight, options), x.options());
  kernels::LinearStepParams params{
      .eps = options.norm.eps,
      .unit_offset = options.norm.unit_offset,
      .weight_at_rest = options.weight_at_rest &&
                        (!options.norm_weight.defined() || options.norm_weight.is_contiguous())};
  if (options.gate) params.gate = detail::gate_of(*options.gate);
  OptionalViews<3> views;
  params.norm_weight = views(contiguous(options.norm_weight));
  params.bias = views(contiguous(options.bias));
  params.residual = views(contiguous(options.residual));
  const int64_t rows = x.numel() / weight.size(1);
  run_kernel(kernels::linear_step, x.view({rows, weight.size(1)}), weight, params,
             y.view({rows, y.size(-1)}));
  return y;
}

}  // namespace sash
