#include "linear.h"

#include <array>

#include "../kernels/elementwise.h"
#include "../kernels/linalg.h"
#include "../op.h"
#include "linear_gelu.h"
#include "linear_parts.h"
#include "matmul.h"

namespace sash {

namespace kernels {
constinit decltype(linear_forward) linear_forward{"linear_forward"};
constinit decltype(linear_gelu_forward) linear_gelu_forward{"linear_gelu_forward"};
constinit decltype(linear_gelu_gradient) linear_gelu_gradient{"linear_gelu_gradient"};
}  // namespace kernels

namespace {

using detail::flatten_rows;

Tensor linear_rows(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const NoGradGuard no_grad;
  const Tensor y = empty(with_last(x, weight.size(0)), x.options());
  run_kernel(kernels::linear_forward, flatten_rows(x), weight, contiguous(bias), flatten_rows(y));
  return y;
}

/// The gradients of a weight, which is input number `weight`, and of the bias, the next input, from
/// the rows x and the gradient g of the rows of the result.
void add_parameter_gradients(const Backward& pass, Gradients& d, size_t weight, const Tensor& x,
                             const Tensor& g) {
  const size_t bias = weight + 1;
  pass.beside(d, {weight, bias}, {g, x}, [&] {
    if (pass.needs(weight)) d[weight] = matmul(g.mT(), x);
    if (pass.needs(bias)) d[bias] = sum(g, {0});
  });
}

/// GELU's argument z and result y, both [..., out]; z is undefined unless it is wanted.
struct Hidden {
  Tensor z, y;
};

Hidden linear_gelu_rows(const Tensor& x, const Tensor& weight, const Tensor& bias, bool tanh,
                        bool keep_argument) {
  const NoGradGuard no_grad;
  const Shape shape = with_last(x, weight.size(0));
  const Hidden hidden{keep_argument ? empty(shape, x.options()) : Tensor(),
                      empty(shape, x.options())};
  run_kernel(kernels::linear_gelu_forward, flatten_rows(x), weight, contiguous(bias),
             keep_argument ? flatten_rows(hidden.z) : Tensor(), flatten_rows(hidden.y), tanh);
  return hidden;
}

// dz = dy gelu'(z) [rows, out], where dy = g w, or g itself if w is undefined; db if it is wanted.
Tensor gelu_gradient(const Tensor& g, const Tensor& w, const Tensor& z, bool tanh, bool bias,
                     Tensor& db) {
  const Tensor rows = flatten_rows(z), dz = empty(rows.shape(), g.options());
  if (!w.defined()) {
    run_kernel(kernels::gelu_backward, rows, g, dz, tanh);
    return dz;
  }
  if (bias) db = empty({rows.size(1)}, g.options());
  run_kernel(kernels::linear_gelu_gradient, g, w, rows, dz, db, tanh);
  return dz;
}

}  // namespace

void detail::check_linear(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                          bool integers) {
  check_compatible(op, x, weight);
  integers ? check_not_bool(op, x) : check_floating(op, x);
  check_min_rank(op, x, 1);
  check_rank(op, weight, 2);
  if (x.size(-1) != weight.size(1)) {
    throw ShapeError(op, "x [..., in] and weight [out, in] with one in", shapes_of(x, weight));
  }
  if (!bias.defined()) return;
  check_compatible(op, x, bias);
  if (bias.shape() != Shape{weight.size(0)}) {
    throw ShapeError(op, "bias " + to_string({weight.size(0)}), to_string(bias.shape()));
  }
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (Autocast cast("linear"); cast) return linear(cast(x), cast(weight), cast(bias));
  detail::check_linear("linear", x, weight, bias, true);
  if (is_integral(x.dtype())) {
    const Tensor y = matmul(x, weight.mT());
    return bias.defined() ? y + bias : y;
  }
  return record(
      "linear", {x, weight, bias}, linear_rows(x, weight, bias),
      [x = save_if(weight.requires_grad(), x), weight = save_if(x.requires_grad(), weight),
       shape = x.shape()](Backward& pass, const Tensor& g) {
        const Tensor rows = flatten_rows(g);
        Gradients d(3);
        add_parameter_gradients(pass, d, 1, pass.needs(1) ? flatten_rows(pass(x)) : Tensor(), rows);
        if (pass.needs(0)) d[0] = matmul(rows, pass(weight)).view(shape);
        return d;
      });
}

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
  const Hidden hidden = linear_gelu_rows(x, weight, bias, tanh, detail::should_record(inputs));
  return record("linear_gelu", {x, weight, bias}, hidden.y,
                [x = save(x), weight = save(weight), bias = save(bias), z = save(hidden.z), tanh,
                 approximation](Backward& pass, const Tensor& g) {
                  const std::array<Tensor, 3> in{pass(x), pass(weight), pass(bias)};
                  if (pass.create_graph()) {
                    return gradients_of_composite(pass, g, composite::linear_gelu, in,
                                                  approximation);
                  }
                  Gradients d(3);
                  const Tensor dz = gelu_gradient(flatten_rows(g), {}, pass(z), tanh, false, d[2]);
                  add_parameter_gradients(pass, d, 1, flatten_rows(in[0]), dz);
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
                     shapes_of(weight2, weight1));
  }
  check_parameter(op, x, bias2, {weight2.size(0)});
  if (!use_fused(kernels::linear_gelu_forward, x.device())) {
    return composite::gelu_mlp(x, weight1, bias1, weight2, bias2, approximation);
  }
  const bool tanh = approximation == GeluApproximation::tanh;
  const TensorRef inputs[] = {x, weight1, bias1, weight2, bias2};
  const Hidden hidden = linear_gelu_rows(x, weight1, bias1, tanh, detail::should_record(inputs));
  const Tensor y = unrecorded([&] { return linear(hidden.y, weight2, bias2); });
  return record(op, {x, weight1, bias1, weight2, bias2}, y,
                [x = save(x), weight1 = save(weight1), bias1 = save(bias1), weight2 = save(weight2),
                 bias2 = save(bias2), z = save(hidden.z), h = save(hidden.y), tanh,
                 approximation](Backward& pass, const Tensor& g) {
                  const std::array<Tensor, 5> in{pass(x), pass(weight1), pass(bias1), pass(weight2),
                                                 pass(bias2)};
                  if (pass.create_graph()) {
                    return gradients_of_composite(pass, g, composite::gelu_mlp, in, approximation);
                  }
                  Gradients d(5);
                  const Tensor rows = flatten_rows(g);
                  add_parameter_gradients(pass, d, 3, flatten_rows(pass(h)), rows);
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
