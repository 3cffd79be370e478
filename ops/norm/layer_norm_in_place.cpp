#include "layer_norm_in_place.h"

#include "../../tensor/tensor_impl.h"
#include "../elementwise/promotion.h"
#include "../kernels/norm.h"
#include "../op.h"
#include "../row_blocks.h"
#include "layer_norm.h"
#include "normalized_shape.h"

namespace sash {
namespace {

constexpr const char* kInPlace = "layer_norm_";

void check_in_place_arguments(const Tensor& x, const Shape& normalized, const Tensor& weight,
                              const Tensor& bias, double eps) {
  check_normalized(kInPlace, x, normalized, eps);
  for (const Tensor* parameter : {&weight, &bias}) {
    if (!parameter->defined()) continue;
    check_same_device(kInPlace, x, *parameter);
    check_floating(kInPlace, *parameter);
    check_shape(kInPlace, *parameter, normalized);
  }
  check_write(kInPlace, x, {weight, bias});
}

/// x [..., normalized_shape] as [..., n].
TensorView with_one_axis(const Tensor& x, int axes) {
  TensorView view = x.tensor_view();
  const int kept = x.rank() - axes;
  int64_t n = 1, step = 1;
  for (int axis = x.rank() - 1; axis >= kept; --axis) {
    const int64_t extent = view.shape[axis], stride = view.strides[axis];
    view.shape.erase(axis);
    view.strides.erase(axis);
    if (extent == 1) continue;
    if (n == 1) step = stride;
    if (stride != n * step && x.numel() > 0) {
      throw ValueError(kInPlace, "normalized axes that lie in memory as one does",
                       "strides " + to_string(x.strides()) + " of shape " + to_string(x.shape()));
    }
    n *= extent;
  }
  view.shape.push_back(n);
  view.strides.push_back(step);
  return view;
}

struct RowStatistics {
  Tensor mean, rstd;  // [rows]
};

RowStatistics normalize(const Tensor& self, const TensorView& x, const Tensor& weight,
                        const Tensor& bias, double eps, const TensorOptions& statistics) {
  const NoGradGuard no_grad;
  const int64_t rows = x.numel() / std::max<int64_t>(1, x.shape.back());
  const DType dtype = row_dtype(x.device, *statistics.dtype);
  const TensorOptions options{.dtype = is_half(dtype) ? DType::float32 : dtype, .device = x.device};
  const RowStatistics s{empty({rows}, options), empty({rows}, options)};
  const auto in_dtype = [&](const Tensor& parameter) {
    if (!parameter.defined()) return parameter;
    return clone_if_aliased(parameter, self).to(dtype).contiguous();
  };
  const Tensor w = in_dtype(weight), b = in_dtype(bias);
  KernelContext context = kernel_context(x.device);
  int64_t row = 0;
  over_row_blocks(context, x, dtype, [&](const TensorView& block) {
    const int64_t count = block.shape[0];
    kernels::layer_norm_forward(context, block, vector_view(w), vector_view(b), block,
                                narrow_first(vector_view(s.mean), row, count),
                                narrow_first(vector_view(s.rstd), row, count), eps);
    row += count;
  });
  return s;
}

// dx = rstd (g - mean(g) - z mean(g z)) from the normalized rows z, as those of mean 0 and rstd 1.
Tensor gradient(const Tensor& z, const Tensor& rstd, const Tensor& g, int64_t n) {
  const DType dtype = row_dtype(z.device(), z.dtype());
  const Tensor rows = z.to(dtype).contiguous(), grad = g.to(dtype).contiguous();
  const Tensor dx = empty(z.shape(), rows.options());
  const int64_t count = rstd.numel();
  run_kernel(kernels::layer_norm_backward, matrix_view(rows, count, n), TensorView(),
             vector_view(zeros_like(rstd)), vector_view(ones_like(rstd)),
             matrix_view(grad, count, n), matrix_view(dx, count, n), TensorView());
  dx.view({count, n}).mul_(rstd.view({count, 1}).to(dtype));
  return dx.to(g.dtype());
}

/// layer_norm of x, weight and bias, in `dtype`.
Tensor affine_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Shape& shape,
                   double eps, DType dtype) {
  return layer_norm(cast_to(x, dtype), shape, cast_to(weight, dtype), cast_to(bias, dtype), eps);
}

}  // namespace

Tensor layer_norm_(Tensor x, const Shape& normalized_shape, const Tensor& weight,
                   const Tensor& bias, double eps) {
  check_in_place_arguments(x, normalized_shape, weight, bias, eps);
  const TensorView view = with_one_axis(x, normalized_shape.rank());
  DType dtype = x.dtype();
  for (const Tensor* parameter : {&weight, &bias}) {
    if (parameter->defined()) dtype = promote_types(dtype, parameter->dtype());
  }
  const TensorRef all[] = {x, weight, bias};
  const bool recorded = detail::should_record(all);
  const int64_t n = view.shape.back();
  const bool affine = weight.defined() || bias.defined();
  const Saved before = recorded && affine ? save(x.clone()) : Saved();
  // The op that made the old rows: what a second derivative goes on to.
  const Ref<Node> source = recorded ? x.impl().grad_fn() : nullptr;
  const uint32_t output = x.impl().output_index();
  const RowStatistics s = normalize(x, view, weight, bias, eps, {.dtype = dtype});
  if (affine) {
    const DType wide = row_dtype(x.device(), dtype);
    record_in_place(kInPlace, x, {x, weight, bias},
                    [before, w = save(weight), b = save(bias), wide, shape = normalized_shape, eps](
                        Backward& pass, const Tensor& g) {
                      const Tensor inputs[] = {pass(before), pass(w), pass(b)};
                      return differentiate(
                          [&](std::span<const Tensor> in) {
                            return affine_norm(in[0], in[1], in[2], shape, eps, wide).to(g.dtype());
                          },
                          inputs, g, pass);
                    });
    return x;
  }
  detail::count_write(x);
  if (!recorded) return x;
  auto backward = [source, output, shape = normalized_shape, n, eps, y = save_output(x),
                   mean = s.mean, rstd = s.rstd](Backward& pass, const Tensor& g) {
    const Tensor z = pass(y);
    if (!pass.create_graph()) return Gradients{gradient(z, rstd, g, n)};
    const Tensor old = unrecorded([&] {
      const int64_t rows = rstd.numel();
      const Tensor wide = z.detach().to(rstd.dtype()).contiguous().view({rows, n});
      return (wide / rstd.view({rows, 1}) + mean.view({rows, 1})).view(z.shape()).to(z.dtype());
    });
    old.impl().set_history(source, output);
    return gradients_of_composite(pass, g, composite::layer_norm, std::array{old}, shape, Tensor(),
                                  Tensor(), eps);
  };
  const TensorRef inputs[] = {x};
  detail::attach_in_place(detail::make_node(kInPlace, std::move(backward)), inputs, x);
  return x;
}

}  // namespace sash
