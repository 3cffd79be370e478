#include "layer_norm.h"

#include <array>

#include "../../tensor/random.h"
#include "../elementwise/dropout.h"
#include "../kernels/norm.h"
#include "../op.h"
#include "dropout_add_layer_norm.h"
#include "normalized_shape.h"

namespace sash {

namespace kernels {
constinit decltype(layer_norm_forward) layer_norm_forward{"layer_norm_forward"};
constinit decltype(layer_norm_backward) layer_norm_backward{"layer_norm_backward"};
constinit decltype(layer_norm_chunks) layer_norm_chunks{"layer_norm_chunks"};
constinit decltype(add_layer_norm_chunks) add_layer_norm_chunks{"add_layer_norm_chunks"};
constinit decltype(dropout_add_layer_norm_forward) dropout_add_layer_norm_forward{
    "dropout_add_layer_norm_forward"};
constinit decltype(dropout_add_layer_norm_backward) dropout_add_layer_norm_backward{
    "dropout_add_layer_norm_backward"};
}  // namespace kernels

namespace {

constexpr const char* kSumAndNorm = "dropout_add_layer_norm";
using kernels::BranchDropout;

// x as the kernels' matrix [rows, columns].
struct Matrix {
  int64_t rows, columns;
  TensorView operator()(const Tensor& x) const { return matrix_view(x, rows, columns); }
};

/// The gradients of a layer norm's weight and bias: the backward kernel sums over chunks of rows
/// while it reads the rows, and a second kernel adds the chunks up.
class ParameterSums {
 public:
  /// `weight` is the number of the op's input that is the weight; the bias is the next input. The
  /// kernel reads x [R, D], with statistics like `mean`.
  ParameterSums(const Backward& pass, size_t weight, const TensorView& x, const Tensor& mean)
      : pass_(pass), weight_(weight), bias_(weight + 1) {
    if (!pass.needs(weight_) && !pass.needs(bias_)) return;
    int64_t count = 0;
    run_kernel(kernels::layer_norm_chunks, x, count);
    chunks_ = empty({count, 2, x.shape[1]}, mean.options());
  }

  /// What the kernel fills; undefined if neither gradient is needed.
  const Tensor& chunks() const { return chunks_; }

  /// Sets the gradients, of `options`.
  void add(Gradients& d, const Shape& shape, const TensorOptions& options) const {
    if (!chunks_.defined()) return;
    pass_.beside(d, {weight_, bias_}, {chunks_}, [&] {
      for (const size_t i : {weight_, bias_}) {
        if (pass_.needs(i)) d[i] = empty(shape, options);
      }
      run_kernel(kernels::add_layer_norm_chunks, chunks_, vector_view(d[weight_]),
                 vector_view(d[bias_]));
    });
  }

 private:
  const Backward& pass_;
  size_t weight_, bias_;
  Tensor chunks_;
};

/// What backward needs, all contiguous; x is the sum where there is one.
struct LayerNormOperands {
  Tensor x, weight, mean, rstd;
};

// The gradients of x, weight and bias.
Gradients fused_backward(const LayerNormOperands& in, const Tensor& grad, const Shape& normalized,
                         const Backward& pass) {
  const Matrix matrix{in.mean.numel(), numel(normalized)};
  const Tensor g = grad.contiguous();
  Gradients d(3);
  if (pass.needs(0)) d[0] = empty(in.x.shape(), g.options());
  const ParameterSums sums(pass, 1, matrix(in.x), in.mean);
  run_kernel(kernels::layer_norm_backward, matrix(in.x), vector_view(in.weight),
             vector_view(in.mean), vector_view(in.rstd), matrix(g), matrix(d[0]), sums.chunks());
  sums.add(d, normalized, g.options());
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

Tensor dropped(const Tensor& x, const BranchDropout& dropout) {
  return dropout.p == 0 ? x : dropout_with(x, dropout.p, dropout.state);
}

// The gradients of branch, residual, weight and bias.
Gradients fused_backward(const LayerNormOperands& in, const Tensor& dsum, const Tensor& dnorm,
                         const BranchDropout& dropout, const Backward& pass) {
  const Shape normalized{in.x.size(-1)};
  const Matrix matrix{in.mean.numel(), numel(normalized)};
  const Tensor g = dnorm.contiguous();
  Gradients d(4);
  d[1] = empty(in.x.shape(), g.options());
  if (pass.needs(0)) d[0] = dropout.p == 0 ? d[1] : empty(in.x.shape(), g.options());
  const ParameterSums sums(pass, 2, matrix(in.x), in.mean);
  run_kernel(kernels::dropout_add_layer_norm_backward, matrix(in.x), vector_view(in.weight),
             vector_view(in.mean), vector_view(in.rstd), matrix(g), matrix(contiguous(dsum)),
             dropout, matrix(d[1]), dropout.p == 0 ? TensorView() : matrix(d[0]), sums.chunks());
  sums.add(d, normalized, g.options());
  return d;
}

// The same from plain ops, with z = (sum - mean) rstd and h = g weight:
// d sum = dsum + rstd (h - mean(h) - z mean(h z)).
Gradients composite_backward(const Tensor& sum, const Tensor& weight, const Tensor& dsum,
                             const Tensor& g, double eps, const BranchDropout& dropout) {
  Gradients d(4);
  Tensor total = dsum;
  if (g.defined()) {
    const Tensor centred = sum - mean(sum, {-1}, true);
    const Tensor rstd = rsqrt(mean(square(centred), {-1}, true) + eps);
    const Tensor z = centred * rstd;
    const Tensor h = weight.defined() ? g * weight : g;
    const Tensor dx = rstd * (h - mean(h, {-1}, true) - z * mean(h * z, {-1}, true));
    total = dsum.defined() ? dsum + dx : dx;
    d[2] = sum_to(g * z, {sum.size(-1)});
    d[3] = sum_to(g, {sum.size(-1)});
  } else {
    d[2] = d[3] = zeros({sum.size(-1)}, sum.options());
  }
  d[0] = dropped(total, dropout);
  d[1] = total;
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

SumAndNorm dropout_add_layer_norm(const Tensor& branch, const Tensor& residual,
                                  const Tensor& weight, const Tensor& bias, double p, double eps,
                                  PhiloxState state) {
  const Tensor sum = residual + dropped(branch, {p, state});
  return {sum, sash::layer_norm(sum, {sum.size(-1)}, weight, bias, eps)};
}

}  // namespace composite

Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  constexpr const char* op = "layer_norm";
  if (Autocast cast(op); cast) {
    return layer_norm(cast(input), normalized_shape, cast(weight), cast(bias), eps);
  }
  check_normalized(op, input, normalized_shape, eps);
  for (const Tensor* parameter : {&weight, &bias}) {
    check_parameter(op, input, *parameter, normalized_shape);
  }
  if (!use_fused(kernels::layer_norm_forward, input.device())) {
    return composite::layer_norm(input, normalized_shape, weight, bias, eps);
  }
  const Tensor x = input.contiguous(), w = contiguous(weight), b = contiguous(bias);
  Matrix matrix{1, numel(normalized_shape)};
  for (int i = 0; i < x.rank() - normalized_shape.rank(); ++i) matrix.rows *= x.shape()[i];
  const Tensor y = empty_like(x);
  const Tensor mean = empty({matrix.rows}, row_statistics(x));
  const Tensor rstd = empty({matrix.rows}, row_statistics(x));
  run_kernel(kernels::layer_norm_forward, matrix(x), vector_view(w), vector_view(b), matrix(y),
             mean, rstd, eps);
  return record(
      op, {x, w, b}, y,
      [x = save(x), w = save(w), mean = save(mean), rstd = save(rstd), shape = normalized_shape,
       eps](Backward& pass, const Tensor& g) {
        if (!pass.create_graph() && use_fused(kernels::layer_norm_backward, g.device())) {
          return fused_backward({pass(x), pass(w), pass(mean), pass(rstd)}, g, shape, pass);
        }
        return composite_backward(pass(x), pass(w), g, shape, eps, pass);
      });
}

SumAndNorm dropout_add_layer_norm(const Tensor& branch_, const Tensor& residual_,
                                  const Tensor& weight_, const Tensor& bias_, double p,
                                  double eps) {
  constexpr const char* op = kSumAndNorm;
  if (Autocast cast(op); cast) {
    return dropout_add_layer_norm(cast(branch_), cast(residual_), cast(weight_), cast(bias_), p,
                                  eps);
  }
  check_branch(op, branch_, residual_);
  const Shape normalized{branch_.size(-1)};
  for (const Tensor* parameter : {&weight_, &bias_}) {
    check_parameter(op, branch_, *parameter, normalized);
  }
  check_probability(op, "p", p);
  check_not_negative(op, "eps", eps);
  const Device device = branch_.device();
  const PhiloxState state = p == 0 ? PhiloxState() : next_philox(device, branch_.numel());
  if (!use_fused(kernels::dropout_add_layer_norm_forward, device)) {
    return composite::dropout_add_layer_norm(branch_, residual_, weight_, bias_, p, eps, state);
  }
  const Tensor branch = branch_.contiguous(), residual = residual_.contiguous();
  const Tensor weight = contiguous(weight_), bias = contiguous(bias_);
  const int64_t columns = branch.size(-1);
  const Matrix matrix{columns == 0 ? 0 : branch.numel() / columns, columns};
  std::array<Tensor, 2> results{empty_like(residual), empty_like(residual)};
  const Tensor mean = empty({matrix.rows}, row_statistics(branch));
  const Tensor rstd = empty({matrix.rows}, row_statistics(branch));
  const BranchDropout dropout{p, state};
  run_kernel(kernels::dropout_add_layer_norm_forward, matrix(branch), matrix(residual),
             vector_view(weight), vector_view(bias), dropout, matrix(results[0]),
             matrix(results[1]), mean, rstd, eps);
  record(op, {branch, residual, weight, bias}, results,
         [sum = save_output(results[0], 0), weight = save(weight), mean = save(mean),
          rstd = save(rstd), dropout, eps](Backward& pass, std::span<const Tensor> g) {
           const bool fused = g[1].defined() && !pass.create_graph();
           if (!fused) {
             return composite_backward(pass(sum), pass(weight), g[0], g[1], eps, dropout);
           }
           return fused_backward({pass(sum), pass(weight), pass(mean), pass(rstd)}, g[0], g[1],
                                 dropout, pass);
         });
  return {results[0], results[1]};
}

}  // namespace sash
