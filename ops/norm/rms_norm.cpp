#include "rms_norm.h"

#include <array>

#include "../elementwise/binary.h"
#include "../elementwise/unary.h"
#include "../kernels/norm.h"
#include "../op.h"
#include "../reduce/reduce.h"
#include "normalized_shape.h"

namespace sash {

namespace kernels {
constinit decltype(rms_norm_forward) rms_norm_forward{"rms_norm_forward"};
constinit decltype(rms_norm_backward) rms_norm_backward{"rms_norm_backward"};
}  // namespace kernels

namespace {

void check_rms_norm(const char* op, const Tensor& x, const Shape& normalized, const Tensor& weight,
                    const RMSNormOptions& options) {
  check_normalized(op, x, normalized, options.eps);
  check_parameter(op, x, weight, normalized);
  if (options.unit_offset && !weight.defined()) {
    throw ValueError(op, "a weight for unit_offset", "none");
  }
}

Dims last_axes(const Shape& normalized) {
  Dims axes;
  for (int i = -normalized.rank(); i < 0; ++i) axes.push_back(i);
  return axes;
}

Tensor factor_of(const Tensor& weight, const RMSNormOptions& options) {
  return options.unit_offset ? weight + 1.0 : weight;
}

/// What backward needs, all contiguous; x is the sum where there is one.
struct RmsNormOperands {
  Tensor x, weight, rstd;
  bool unit_offset;
};

// The gradients of x and weight from those of the norm, g, and of the sum, which may be undefined.
std::array<Tensor, 2> fused_backward(const RmsNormOperands& in, const Tensor& g, const Tensor& dsum,
                                     bool wants_x, bool wants_weight) {
  const int64_t rows = in.rstd.numel(), columns = rows == 0 ? 0 : in.x.numel() / rows;
  const Tensor dy = g.contiguous(), further = contiguous(dsum);
  std::array<Tensor, 2> d;
  if (wants_x) d[0] = empty(in.x.shape(), dy.options());
  if (wants_weight) {
    d[1] = (rows == 0 ? zeros : empty)(in.weight.shape(), dy.options());
  }
  if (rows == 0) return d;
  const auto matrix = [&](const Tensor& x) { return matrix_view(x, rows, columns); };
  run_kernel(kernels::rms_norm_backward, matrix(in.x), vector_view(in.weight), vector_view(in.rstd),
             matrix(dy), matrix(further), matrix(d[0]), vector_view(d[1]), in.unit_offset);
  return d;
}

// The same from plain ops, with z = x rstd and h = g w: dx = dsum + rstd (h - z mean(h z)).
std::array<Tensor, 2> composite_backward(const Tensor& x, const Tensor& weight, const Tensor& g,
                                         const Tensor& dsum, const Shape& normalized,
                                         const RMSNormOptions& options) {
  if (!g.defined()) return {dsum, weight.defined() ? zeros_like(weight) : Tensor()};
  const Dims axes = last_axes(normalized);
  const Tensor rstd = rsqrt(mean(square(x), axes, true) + options.eps), z = x * rstd;
  const Tensor h = weight.defined() ? g * factor_of(weight, options) : g;
  const Tensor dx = rstd * (h - z * mean(h * z, axes, true));
  return {dsum.defined() ? dsum + dx : dx, weight.defined() ? sum_to(g * z, normalized) : Tensor()};
}

struct Forward {
  Tensor sum, y, rstd;
};

// Of contiguous tensors; residual may be undefined.
Forward forward(const Tensor& x, const Tensor& residual, const Tensor& weight,
                const Shape& normalized, const RMSNormOptions& options) {
  const int64_t columns = numel(normalized), rows = columns == 0 ? 0 : x.numel() / columns;
  const Forward out{residual.defined() ? empty_like(x) : Tensor(), empty_like(x),
                    empty({rows}, row_statistics(x))};
  const auto matrix = [&](const Tensor& t) { return matrix_view(t, rows, columns); };
  run_kernel(kernels::rms_norm_forward, matrix(x), matrix(residual), vector_view(weight),
             matrix(out.sum), matrix(out.y), out.rstd, options.eps, options.unit_offset);
  return out;
}

}  // namespace

Tensor composite::rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                           const RMSNormOptions& options) {
  const Tensor y = x * rsqrt(mean(square(x), last_axes(normalized_shape), true) + options.eps);
  return weight.defined() ? y * factor_of(weight, options) : y;
}

Tensor rms_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight,
                const RMSNormOptions& options) {
  const char* op = "rms_norm";
  if (Autocast cast(op); cast) {
    return rms_norm(cast(input), normalized_shape, cast(weight), options);
  }
  check_rms_norm(op, input, normalized_shape, weight, options);
  if (!use_fused(kernels::rms_norm_forward, input.device())) {
    return composite::rms_norm(input, normalized_shape, weight, options);
  }
  const Tensor x = input.contiguous(), w = contiguous(weight);
  const Forward out = forward(x, {}, w, normalized_shape, options);
  return record(op, {x, w}, out.y,
                [x = save(x), w = save(w), rstd = save(out.rstd), shape = normalized_shape,
                 options](Backward& pass, const Tensor& g) {
                  const auto [dx, dw] =
                      pass.create_graph()
                          ? composite_backward(pass(x), pass(w), g, {}, shape, options)
                          : fused_backward({pass(x), pass(w), pass(rstd), options.unit_offset}, g,
                                           {}, pass.needs(0), pass.needs(1));
                  return Gradients{dx, dw};
                });
}

SumAndNorm add_rms_norm(const Tensor& branch_, const Tensor& residual_, const Tensor& weight_,
                        const RMSNormOptions& options) {
  const char* op = "add_rms_norm";
  if (Autocast cast(op); cast) {
    return add_rms_norm(cast(branch_), cast(residual_), cast(weight_), options);
  }
  check_branch(op, branch_, residual_);
  const Shape normalized{branch_.size(-1)};
  check_rms_norm(op, branch_, normalized, weight_, options);
  if (!use_fused(kernels::rms_norm_forward, branch_.device())) {
    const Tensor sum = residual_ + branch_;
    return {sum, composite::rms_norm(sum, normalized, weight_, options)};
  }
  const Tensor branch = branch_.contiguous(), residual = residual_.contiguous();
  const Tensor weight = contiguous(weight_);
  const Forward out = forward(branch, residual, weight, normalized, options);
  std::array<Tensor, 2> results{out.sum, out.y};
  record(op, {branch, residual, weight}, results,
         [sum = save_output(results[0], 0), weight = save(weight), rstd = save(out.rstd),
          normalized, options](Backward& pass, std::span<const Tensor> g) {
           const bool fused = g[1].defined() && !pass.create_graph();
           const auto [dx, dw] =
               fused ? fused_backward({pass(sum), pass(weight), pass(rstd), options.unit_offset},
                                      g[1], g[0], pass.needs(0) || pass.needs(1), pass.needs(2))
                     : composite_backward(pass(sum), pass(weight), g[1], g[0], normalized, options);
           return Gradients{dx, dx, dw};
         });
  return {results[0], results[1]};
}

}  // namespace sash
