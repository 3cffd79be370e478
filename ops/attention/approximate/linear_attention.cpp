#include "linear_attention.h"

#include <array>
#include <cmath>

#include "../../kernels/attention.h"
#include "../../kernels/linear_attention.h"
#include "../../op.h"
#include "../exact/attention_call.h"
#include "../exact/head_layout.h"
#include "linear_attention_call.h"

namespace sash {

namespace kernels {
constinit decltype(linear_attention_forward) linear_attention_forward{"linear_attention_forward"};
constinit decltype(linear_attention_kept_bytes) linear_attention_kept_bytes{
    "linear_attention_kept_bytes"};
constinit decltype(linear_attention_backward) linear_attention_backward{
    "linear_attention_backward"};
}  // namespace kernels

namespace {

constexpr const char* kLinearAttention = "linear_attention";
using detail::with_unit_rows;

// Checked on the CPU at once, on a card by the kernel, which reports at the next synchronisation.
Tensor checked_lengths(const Tensor& q, const Tensor& k, const Tensor& lengths) {
  const NoGradGuard no_grad;
  check_lengths(kLinearAttention, q, lengths);
  const Tensor all = lengths.contiguous();
  const Tensor bounds = empty({q.size(0), 1, 1, 2}, lengths.options());
  const TensorView lengths_view = all.tensor_view();
  KernelContext context = kernel_context(q.device());
  kernels::row_bounds(
      context, {.queries = 1, .keys = k.size(2), .lengths = &lengths_view, .op = kLinearAttention},
      false, bounds.tensor_view());
  return bounds.view({q.size(0), 2}).select(1, 1);
}

struct Views {
  Views(const Tensor& q_, const Tensor& k_, const Tensor& v_, const LinearAttentionCall& call)
      : q(with_unit_rows(q_)), k(with_unit_rows(k_)), v(with_unit_rows(v_)) {
    params = {.causal = call.causal, .eps = call.eps, .lengths = optional(call.lengths)};
  }
  /// Hands `memory` to the kernels; nothing if it is undefined.
  void keep(const Tensor& memory) { params.kept = optional(memory); }
  kernels::LinearAttentionInputs inputs() const {
    return {q.tensor_view(), k.tensor_view(), v.tensor_view()};
  }

  Tensor q, k, v;
  OptionalViews<2> optional;
  kernels::LinearAttentionParams params{};
};

/// What the forward pass leaves for the backward pass.
struct Forward {
  Tensor den, kept;
};

Gradients fused_backward(const Tensor& g, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& out, const Forward& forward,
                         const LinearAttentionCall& call) {
  const NoGradGuard no_grad;
  Views x(q, k, v, call);
  x.keep(forward.kept);
  const Tensor g_rows = with_unit_rows(g);
  Gradients gradients{empty(q.shape(), q.options()), empty(k.shape(), k.options()),
                      empty(v.shape(), v.options())};
  KernelContext context = kernel_context(q.device());
  kernels::linear_attention_backward(context, x.inputs(), x.params,
                                     {.g = g_rows.tensor_view(),
                                      .out = out.tensor_view(),
                                      .den = forward.den.tensor_view(),
                                      .dq = gradients[0].tensor_view(),
                                      .dk = gradients[1].tensor_view(),
                                      .dv = gradients[2].tensor_view()});
  return gradients;
}

Tensor fused(const Tensor& q, const Tensor& k, const Tensor& v, LinearAttentionCall call) {
  const Tensor out = empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  Forward forward{.den = empty({q.size(0), q.size(1), q.size(2)}, row_statistics(q)), .kept = {}};
  {
    Views x(q, k, v, call);
    KernelContext context = kernel_context(q.device());
    if (grad_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad())) {
      int64_t bytes = 0;
      kernels::linear_attention_kept_bytes(context, x.inputs(), x.params, bytes);
      if (bytes > 0) forward.kept = empty({bytes}, {.dtype = DType::uint8, .device = q.device()});
      x.keep(forward.kept);
    }
    kernels::linear_attention_forward(context, x.inputs(), x.params, out.tensor_view(),
                                      forward.den.tensor_view());
  }
  return record(
      kLinearAttention, {q, k, v}, out,
      [q = save(q), k = save(k), v = save(v), out = save_output(out), forward,
       call = std::move(call)](Backward& pass, const Tensor& g) {
        const std::array<Tensor, 3> inputs{pass(q), pass(k), pass(v)};
        if (!pass.create_graph()) {
          return fused_backward(g, inputs[0], inputs[1], inputs[2], pass(out), forward, call);
        }
        return gradients_of_composite(pass, g, linear_attention_from_plain_ops, inputs, call);
      });
}

}  // namespace

void check_linear_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                            double eps) {
  check_heads(op, q, k, v);
  if (!(eps > 0)) throw ValueError(op, "an eps above 0", to_text(eps));
  if (q.dtype() != DType::float64 && !std::isnormal(static_cast<float>(eps))) {
    throw ValueError(op, "an eps that float32 holds", to_text(eps));
  }
}

LinearAttentionCall::LinearAttentionCall(const Tensor& q, const Tensor& k, const Tensor& v,
                                         const LinearAttentionOptions& options)
    : causal(options.causal), eps(options.eps) {
  check_linear_attention(kLinearAttention, q, k, v, eps);
  if (causal && q.size(2) != k.size(2)) {
    throw ShapeError(kLinearAttention, "as many queries as keys if causal", shapes_of(q, k));
  }
  if (options.key_lengths.defined()) lengths = checked_lengths(q, k, options.key_lengths);
}

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const LinearAttentionOptions& options) {
  if (Autocast cast("linear_attention"); cast) {
    return linear_attention(cast(q), cast(k), cast(v), options);
  }
  LinearAttentionCall call(q, k, v, options);
  const bool kernels = use_fused(kernels::linear_attention_forward, q.device()) &&
                       use_fused(kernels::linear_attention_backward, q.device());
  return kernels ? fused(q, k, v, std::move(call)) : linear_attention_from_plain_ops(q, k, v, call);
}

Tensor composite::linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const LinearAttentionOptions& options) {
  return linear_attention_from_plain_ops(q, k, v, LinearAttentionCall(q, k, v, options));
}

}  // namespace sash
