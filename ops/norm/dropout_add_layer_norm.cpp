#include "dropout_add_layer_norm.h"

#include <array>

#include "../../tensor/autograd/node.h"
#include "../../tensor/factories.h"
#include "../../tensor/random.h"
#include "../autocast.h"
#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/dropout.h"
#include "../elementwise/unary.h"
#include "../kernels/norm.h"
#include "../reduce/reduce.h"
#include "../rows.h"
#include "layer_norm.h"
#include "parameter_sums.h"

namespace sash {

namespace kernels {
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, const BranchDropout&, const TensorView&, const TensorView&,
                      const TensorView&, const TensorView&, double)>
    dropout_add_layer_norm_forward{"dropout_add_layer_norm_forward"};
constinit Kernel<void(KernelContext&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, const TensorView&, const TensorView&, const BranchDropout&,
                      const TensorView&, const TensorView&, const TensorView&)>
    dropout_add_layer_norm_backward{"dropout_add_layer_norm_backward"};
}  // namespace kernels

namespace {

constexpr const char* kSumAndNorm = "dropout_add_layer_norm";
using kernels::BranchDropout;

void check_arguments(const Tensor& branch, const Tensor& residual, const Tensor& weight,
                     const Tensor& bias, double p, double eps) {
  check_defined(kSumAndNorm, branch);
  check_floating(kSumAndNorm, branch);
  check_min_rank(kSumAndNorm, branch, 1);
  check_compatible(kSumAndNorm, branch, residual);
  check_shape(kSumAndNorm, residual, branch.shape());
  for (const Tensor* parameter : {&weight, &bias}) {
    if (!parameter->defined()) continue;
    check_compatible(kSumAndNorm, branch, *parameter);
    check_shape(kSumAndNorm, *parameter, {branch.size(-1)});
  }
  check_probability(kSumAndNorm, "p", p);
  check_not_negative(kSumAndNorm, "eps", eps);
}

Tensor dropped(const Tensor& x, const BranchDropout& dropout) {
  return dropout.p == 0 ? x : dropout_with(x, dropout.p, dropout.state);
}

/// What backward needs, all contiguous.
struct SumOperands {
  Tensor sum, weight, mean, rstd;
};

// The gradients of branch, residual, weight and bias.
Gradients fused_backward(const SumOperands& in, const Tensor& dsum, const Tensor& dnorm,
                         const BranchDropout& dropout, const Backward& pass) {
  const int64_t columns = in.sum.size(-1), rows = in.mean.numel();
  const Tensor g = dnorm.contiguous(), further = dsum.defined() ? dsum.contiguous() : dsum;
  const TensorOptions options = g.options();
  Gradients d(4);
  d[1] = empty(in.sum.shape(), options);
  if (pass.needs(0)) d[0] = dropout.p == 0 ? d[1] : empty(in.sum.shape(), options);
  const auto matrix = [&](const Tensor& x) { return matrix_view(x, rows, columns); };
  const detail::ParameterSums sums(pass, 2, 3, matrix(in.sum), in.mean);
  KernelContext context = kernel_context(g.device());
  kernels::dropout_add_layer_norm_backward(
      context, matrix(in.sum), vector_view(in.weight), vector_view(in.mean), vector_view(in.rstd),
      matrix(g), matrix(further), dropout, matrix(d[1]),
      dropout.p == 0 ? TensorView() : matrix(d[0]), sums.chunks());
  sums.add(d, {columns}, options);
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

SumAndNorm dropout_add_layer_norm(const Tensor& branch, const Tensor& residual,
                                  const Tensor& weight, const Tensor& bias, double p, double eps,
                                  PhiloxState state) {
  const Tensor sum = residual + dropped(branch, {p, state});
  return {sum, sash::layer_norm(sum, {sum.size(-1)}, weight, bias, eps)};
}

}  // namespace composite

SumAndNorm dropout_add_layer_norm(const Tensor& branch_, const Tensor& residual_,
                                  const Tensor& weight_, const Tensor& bias_, double p,
                                  double eps) {
  if (Autocast cast(kSumAndNorm); cast) {
    return dropout_add_layer_norm(cast(branch_), cast(residual_), cast(weight_), cast(bias_), p,
                                  eps);
  }
  check_arguments(branch_, residual_, weight_, bias_, p, eps);
  const Device device = branch_.device();
  const PhiloxState state = p == 0 ? PhiloxState() : next_philox(device, branch_.numel());
  if (!use_fused(kernels::dropout_add_layer_norm_forward, device)) {
    return sash::composite::dropout_add_layer_norm(branch_, residual_, weight_, bias_, p, eps,
                                                   state);
  }
  const auto contiguous = [](const Tensor& x) { return x.defined() ? x.contiguous() : x; };
  const Tensor branch = contiguous(branch_), residual = contiguous(residual_);
  const Tensor weight = contiguous(weight_), bias = contiguous(bias_);
  const int64_t columns = branch.size(-1);
  const int64_t rows = columns == 0 ? 0 : branch.numel() / columns;
  std::array<Tensor, 2> results{empty_like(residual), empty_like(residual)};
  const Tensor mean = empty({rows}, row_statistics(branch));
  const Tensor rstd = empty({rows}, row_statistics(branch));
  const BranchDropout dropout{p, state};
  const auto matrix = [&](const Tensor& x) { return matrix_view(x, rows, columns); };
  KernelContext context = kernel_context(device);
  kernels::dropout_add_layer_norm_forward(
      context, matrix(branch), matrix(residual), vector_view(weight), vector_view(bias), dropout,
      matrix(results[0]), matrix(results[1]), vector_view(mean), vector_view(rstd), eps);
  record(kSumAndNorm, {branch, residual, weight, bias}, results,
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
