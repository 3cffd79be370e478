#include "linear_gelu.h"

#include <array>

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../autocast.h"
#include "../checks.h"
#include "../kernels/elementwise.h"
#include "../kernels/linalg.h"
#include "../reduce/reduce.h"
#include "batch.h"
#include "linear.h"
#include "linear_parts.h"
#include "matmul.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView*,
                      const TensorView&, const TensorView&, bool)>
    linear_gelu_forward{"linear_gelu_forward"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, const TensorView&, bool)>
    linear_gelu_gradient{"linear_gelu_gradient"};
}  // namespace kernels

namespace {

using detail::flatten_rows;

TensorView view_of(const Tensor& x) { return x.defined() ? x.tensor_view() : TensorView(); }

/// GELU's argument z and result y, both [..., out]; z is undefined unless it is wanted.
struct Hidden {
  Tensor z, y;
};

Hidden forward(const Tensor& x, const Tensor& weight, const Tensor& bias, bool tanh,
               bool keep_argument) {
  const NoGradGuard no_grad;
  const Tensor rows = flatten_rows(x), row = bias.defined() ? bias.contiguous() : bias;
  Shape shape = x.shape();
  shape[x.rank() - 1] = weight.size(0);
  const Shape matrix{rows.size(0), weight.size(0)};
  const Hidden hidden{keep_argument ? empty(shape, x.options()) : Tensor(),
                      empty(shape, x.options())};
  const TensorView bias_view = view_of(row);
  KernelContext context = kernel_context(x.device());
  kernels::linear_gelu_forward(context, rows.tensor_view(), weight.tensor_view(),
                               row.defined() ? &bias_view : nullptr,
                               keep_argument ? hidden.z.view(matrix).tensor_view() : TensorView(),
                               hidden.y.view(matrix).tensor_view(), tanh);
  return hidden;
}

// dz = dy gelu'(z) [rows, out], where dy = g w, or g itself if w is undefined; db if it is wanted.
Tensor gelu_gradient(const Tensor& g, const Tensor& w, const Tensor& z, bool tanh, bool bias,
                     Tensor& db) {
  const Tensor rows = flatten_rows(z), dz = empty(rows.shape(), g.options());
  KernelContext context = kernel_context(g.device());
  if (!w.defined()) {
    kernels::gelu_backward(context, rows.tensor_view(), g.tensor_view(), dz.tensor_view(), tanh);
    return dz;
  }
  if (bias) db = empty({rows.size(1)}, g.options());
  kernels::linear_gelu_gradient(context, g.tensor_view(), w.tensor_view(), rows.tensor_view(),
                                dz.tensor_view(), view_of(db), tanh);
  return dz;
}

}  // namespace

namespace composite {

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   GeluApproximation approximation) {
  return sash::gelu(linear(x, weight, bias), approximation);
}

Tensor gelu_mlp(const Tensor& x, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2,
                const Tensor& bias2, GeluApproximation approximation) {
  return linear(composite::linear_gelu(x, weight1, bias1, approximation), weight2, bias2);
}

}  // namespace composite

Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   GeluApproximation approximation) {
  if (Autocast cast("linear_gelu"); cast) {
    return linear_gelu(cast(x), cast(weight), cast(bias), approximation);
  }
  detail::check_linear("linear_gelu", x, weight, bias);
  if (!use_fused(kernels::linear_gelu_forward, x.device())) {
    return composite::linear_gelu(x, weight, bias, approximation);
  }
  const bool tanh = approximation == GeluApproximation::tanh;
  const TensorRef inputs[] = {x, weight, bias};
  const Hidden hidden = forward(x, weight, bias, tanh, detail::should_record(inputs));
  return record("linear_gelu", {x, weight, bias}, hidden.y,
                [x = save(x), weight = save(weight), bias = save(bias), z = save(hidden.z), tanh,
                 approximation](Backward& pass, const Tensor& g) {
                  const std::array<Tensor, 3> in{pass(x), pass(weight), pass(bias)};
                  if (pass.create_graph()) {
                    return differentiate(
                        [=](std::span<const Tensor> t) {
                          return composite::linear_gelu(t[0], t[1], t[2], approximation);
                        },
                        in, g, pass);
                  }
                  Gradients d(3);
                  const Tensor dz = gelu_gradient(flatten_rows(g), {}, pass(z), tanh, false, d[2]);
                  const Tensor from = flatten_rows(in[0]);
                  pass.beside(d, {1, 2}, {dz, from}, [&] {
                    if (pass.needs(1)) d[1] = matmul(dz.mT(), from);
                    if (pass.needs(2)) d[2] = sum(dz, {0});
                  });
                  if (pass.needs(0)) d[0] = matmul(dz, in[1]).view(in[0].shape());
                  return d;
                });
}

Tensor gelu_mlp(const Tensor& x, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2,
                const Tensor& bias2, GeluApproximation approximation) {
  const char* op = "gelu_mlp";
  if (Autocast cast(op); cast) {
    return gelu_mlp(cast(x), cast(weight1), cast(bias1), cast(weight2), cast(bias2), approximation);
  }
  detail::check_linear(op, x, weight1, bias1);
  check_compatible(op, x, weight2);
  check_rank(op, weight2, 2);
  if (weight2.size(1) != weight1.size(0)) {
    throw ShapeError(op, "weight2 [out, hidden] with the hidden of weight1 [hidden, in]",
                     to_string(weight2.shape()) + " and " + to_string(weight1.shape()));
  }
  if (bias2.defined()) {
    check_compatible(op, x, bias2);
    check_shape(op, bias2, {weight2.size(0)});
  }
  if (!use_fused(kernels::linear_gelu_forward, x.device())) {
    return composite::gelu_mlp(x, weight1, bias1, weight2, bias2, approximation);
  }
  const bool tanh = approximation == GeluApproximation::tanh;
  const TensorRef inputs[] = {x, weight1, bias1, weight2, bias2};
  const Hidden hidden = forward(x, weight1, bias1, tanh, detail::should_record(inputs));
  const Tensor y = [&] {
    const NoGradGuard no_grad;
    return linear(hidden.y, weight2, bias2);
  }();
  return record(op, {x, weight1, bias1, weight2, bias2}, y,
                [x = save(x), weight1 = save(weight1), bias1 = save(bias1), weight2 = save(weight2),
                 bias2 = save(bias2), z = save(hidden.z), h = save(hidden.y), tanh,
                 approximation](Backward& pass, const Tensor& g) {
                  const std::array<Tensor, 5> in{pass(x), pass(weight1), pass(bias1), pass(weight2),
                                                 pass(bias2)};
                  if (pass.create_graph()) {
                    return differentiate(
                        [=](std::span<const Tensor> t) {
                          return composite::gelu_mlp(t[0], t[1], t[2], t[3], t[4], approximation);
                        },
                        in, g, pass);
                  }
                  Gradients d(5);
                  const Tensor rows = flatten_rows(g);
                  const Tensor activated = flatten_rows(pass(h));
                  pass.beside(d, {3, 4}, {rows, activated}, [&] {
                    if (pass.needs(3)) d[3] = matmul(rows.mT(), activated);
                    if (pass.needs(4)) d[4] = sum(rows, {0});
                  });
                  if (!pass.needs(0) && !pass.needs(1) && !pass.needs(2)) return d;
                  const Tensor dz = gelu_gradient(rows, in[3], pass(z), tanh, pass.needs(2), d[2]);
                  const Tensor from = flatten_rows(in[0]);
                  pass.beside(d, {1}, {dz, from}, [&] {
                    if (pass.needs(1)) d[1] = matmul(dz.mT(), from);
                  });
                  if (pass.needs(0)) d[0] = matmul(dz, in[1]).view(in[0].shape());
                  return d;
                });
}

}  // namespace sash
