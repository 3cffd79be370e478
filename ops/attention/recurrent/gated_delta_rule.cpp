#include "gated_delta_rule.h"

#include <array>
#include <cmath>

#include "../../kernels/attention.h"
#include "../../kernels/delta_rule.h"
#include "../../norm/rms_norm.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "../exact/head_layout.h"
#include "recurrent_call.h"

namespace sash {

namespace kernels {
constinit decltype(delta_rule_kept_bytes) delta_rule_kept_bytes{"delta_rule_kept_bytes"};
constinit decltype(delta_rule_forward) delta_rule_forward{"delta_rule_forward"};
constinit decltype(delta_rule_backward) delta_rule_backward{"delta_rule_backward"};
}  // namespace kernels

namespace {

using detail::with_unit_rows;

constexpr const char* kGatedDeltaRule = "gated_delta_rule";
constexpr double kNormEps = 1e-6;

// A copy, checked on the CPU at once, on a card by the kernel, which reports at the next
// synchronisation.
Tensor checked_texts(const char* op, const Tensor& q, const Tensor& cu_seqlens) {
  const NoGradGuard no_grad;
  check_same_device(op, q, cu_seqlens);
  check_dtype(op, cu_seqlens, DType::int32, "cu_seqlens");
  if (cu_seqlens.rank() != 1 || cu_seqlens.size(0) == 0) {
    throw ShapeError(op, "cu_seqlens [n + 1]", to_string(cu_seqlens.shape()));
  }
  if (q.size(0) != 1) throw ShapeError(op, "B = 1 with cu_seqlens", to_string(q.shape()));
  Tensor texts = cu_seqlens.contiguous().clone();
  const int64_t length = q.size(2);
  const Tensor bounds = empty({1, 1, length, 2}, texts.options());
  const TensorView view = texts.tensor_view();
  KernelContext context = kernel_context(q.device());
  kernels::row_bounds(context, {.queries = length, .keys = length, .cu_seqlens = &view, .op = op},
                      false, bounds.tensor_view());
  return texts;
}

// Of q's device, and of its dtype or of that of sums.
void check_beside(const char* op, const Tensor& q, const Tensor& x) {
  check_same_device(op, q, x);
  if (x.dtype() == q.dtype() || x.dtype() == row_statistics(q).dtype) return;
  check_same_dtype(op, q, x);
}

Tensor normalized(const Tensor& x) {
  const double depth = static_cast<double>(x.size(3));
  const Tensor wide = x.to(*row_statistics(x).dtype);
  const Tensor unit = rms_norm(wide, {x.size(3)}, {}, {.eps = kNormEps / depth});
  return (unit * (1 / std::sqrt(depth))).to(x.dtype());
}

struct Views {
  Views(const RecurrentTensors& x, const RecurrentCall& call)
      : q(with_unit_rows(x.q)), k(with_unit_rows(x.k)), v(with_unit_rows(x.v)) {
    inputs = {.q = q.tensor_view(),
              .k = k.tensor_view(),
              .v = v.tensor_view(),
              .g = optional(contiguous(x.g)),
              .beta = optional(contiguous(x.beta)),
              .initial = optional(contiguous(x.initial)),
              .texts = optional(call.cu_seqlens),
              .scale = call.scale};
  }

  Tensor q, k, v;
  OptionalViews<4> optional;
  kernels::DeltaInputs inputs{};
};

Gradients fused_backward(const Tensor& g_out, const Tensor& g_state, const RecurrentTensors& x,
                         const Tensor& kept, const RecurrentCall& call) {
  const NoGradGuard no_grad;
  const Views views(x, call);
  const Shape out = x.v.shape();
  const Tensor g = g_out.defined() ? with_unit_rows(g_out) : zeros(out, x.q.options());
  const auto like = [](const Tensor& t) { return t.defined() ? empty(t.shape(), t.options()) : t; };
  Gradients d{like(x.q), like(x.k), like(x.v), like(x.g), like(x.beta), {}};
  const Shape state{views.inputs.text_count(), out[1], x.q.size(3), out[3]};
  d[5] = empty(state, row_statistics(x.q));
  OptionalViews<3> optional;
  KernelContext context = kernel_context(x.q.device());
  kernels::delta_rule_backward(context, views.inputs,
                               {.g_out = g.tensor_view(),
                                .g_state = optional(contiguous(g_state)),
                                .kept = kept.tensor_view(),
                                .dq = d[0].tensor_view(),
                                .dk = d[1].tensor_view(),
                                .dv = d[2].tensor_view(),
                                .dg = optional(d[3]),
                                .dbeta = optional(d[4]),
                                .dinitial = d[5].tensor_view()});
  if (!x.initial.defined()) d[5] = {};
  return d;
}

// Both results as one vector, to differentiate both at once.
Tensor joined(const Tensor& out, const Tensor& state) {
  return cat({out.to(state.dtype()).reshape({-1}), state.reshape({-1})});
}

Gradients composite_backward(const Tensor& g_out, const Tensor& g_state, const RecurrentTensors& x,
                             const RecurrentResult& y, const RecurrentCall& call,
                             const Backward& pass) {
  const auto composite = [&call](const auto&... inputs) {
    const RecurrentResult result = recurrence_from_plain_ops({inputs...}, call);
    return joined(result.out, result.state);
  };
  return gradients_of_composite(pass,
                                joined(g_out.defined() ? g_out : zeros_like(y.out),
                                       g_state.defined() ? g_state : zeros_like(y.state)),
                                composite, std::array{x.q, x.k, x.v, x.g, x.beta, x.initial});
}

RecurrentResult fused(const char* op, const RecurrentTensors& x, RecurrentCall call) {
  const TensorRef inputs[] = {x.q, x.k, x.v, x.g, x.beta, x.initial};
  const TensorOptions sums = row_statistics(x.q);
  const int64_t heads = x.v.size(1), depth = x.q.size(3), width = x.v.size(3);
  Tensor kept;
  std::array<Tensor, 2> results{empty(x.v.shape(), x.v.options()), {}};
  {
    const Views views(x, call);
    results[1] = empty({views.inputs.text_count(), heads, depth, width}, sums);
    OptionalViews<1> optional;
    KernelContext context = kernel_context(x.q.device());
    if (detail::should_record(inputs)) {
      int64_t bytes = 0;
      kernels::delta_rule_kept_bytes(context, views.inputs, bytes);
      kept = empty({bytes}, {.dtype = DType::uint8, .device = x.q.device()});
    }
    kernels::delta_rule_forward(context, views.inputs, results[0].tensor_view(),
                                results[1].tensor_view(), optional(kept));
  }
  record(op, {x.q, x.k, x.v, x.g, x.beta, x.initial}, results,
         [q = save(x.q), k = save(x.k), v = save(x.v), g = save(x.g), beta = save(x.beta),
          initial = save(x.initial), out = save_output(results[0], 0),
          state = save_output(results[1], 1), kept,
          call = std::move(call)](Backward& pass, std::span<const Tensor> grads) {
           const RecurrentTensors saved{pass(q), pass(k),    pass(v),
                                        pass(g), pass(beta), pass(initial)};
           return pass.create_graph() ? composite_backward(grads[0], grads[1], saved,
                                                           {pass(out), pass(state)}, call, pass)
                                      : fused_backward(grads[0], grads[1], saved, kept, call);
         });
  return {results[0], results[1]};
}

RecurrentResult recurrence(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& beta, const RecurrentOptions& options) {
  if (Autocast cast(kGatedDeltaRule); cast) {
    return recurrence(op, cast(q), cast(k), cast(v), beta, options);
  }
  RecurrentCall call(op, q, k, v, beta, options);
  const RecurrentTensors x = recurrent_tensors(q, k, v, beta, options);
  const bool kernels = use_fused(kernels::delta_rule_forward, q.device()) &&
                       use_fused(kernels::delta_rule_backward, q.device());
  return kernels ? fused(op, x, std::move(call)) : recurrence_from_plain_ops(x, call);
}

}  // namespace

RecurrentCall::RecurrentCall(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& beta, const RecurrentOptions& options) {
  for (const Tensor* x : {&k, &v}) check_compatible(op, q, *x);
  check_floating(op, q);
  const auto wrong_heads = [&] {
    const int64_t heads = q.size(1), of_values = v.size(1);
    return heads == 0 ? of_values != 0 : of_values % heads != 0;
  };
  if (q.rank() != 4 || v.rank() != 4 || q.shape() != k.shape() || q.size(0) != v.size(0) ||
      q.size(2) != v.size(2) || wrong_heads()) {
    throw ShapeError(op, "q and k [B, H, S, D], v [B, H_v, S, D_v], H_v a multiple of H",
                     to_string(q.shape()) + ", " + shapes_of(k, v));
  }
  const Shape tokens{v.size(0), v.size(1), v.size(2)};
  if (beta.defined()) {
    check_beside(op, q, beta);
    check_shape(op, beta, tokens);
  }
  if (options.g.defined()) {
    check_beside(op, q, options.g);
    Shape expected = tokens;
    if (options.g.rank() == 4) expected.push_back(q.size(3));
    check_shape(op, options.g, expected);
  }
  if (options.cu_seqlens.defined()) cu_seqlens = checked_texts(op, q, options.cu_seqlens);
  if (const Tensor& initial = options.initial_state; initial.defined()) {
    check_same_device(op, q, initial);
    check_dtype(op, initial, *row_statistics(q).dtype, "a state");
    const int64_t texts = cu_seqlens.defined() ? cu_seqlens.size(0) - 1 : q.size(0);
    check_shape(op, initial, {texts, v.size(1), q.size(3), v.size(3)});
  }
  const double depth = static_cast<double>(std::max<int64_t>(q.size(3), 1));
  scale = options.scale.value_or(1 / std::sqrt(depth));
  const bool in_range =
      q.dtype() == DType::float64 ? std::isfinite(scale) : std::isfinite(static_cast<float>(scale));
  if (!in_range) throw ValueError(op, "a finite scale", to_text(scale));
}

RecurrentTensors recurrent_tensors(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& beta, const RecurrentOptions& options) {
  const DType sums = *row_statistics(q).dtype;
  const bool unit = options.normalize && q.size(3) > 0;
  return {unit ? normalized(q) : q, unit ? normalized(k) : k, v,
          cast_to(options.g, sums), cast_to(beta, sums),      options.initial_state};
}

RecurrentResult gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& beta, const RecurrentOptions& options) {
  check_defined(kGatedDeltaRule, beta, "beta");
  return recurrence(kGatedDeltaRule, q, k, v, beta, options);
}

RecurrentResult decayed_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                         const RecurrentOptions& options) {
  return recurrence("decayed_linear_attention", q, k, v, {}, options);
}

Tensor gated_delta_rule_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                             RecurrentState& state, const RecurrentOptions& options) {
  constexpr const char* op = "gated_delta_rule_step";
  check_defined(op, beta, "beta");
  if (options.initial_state.defined()) {
    throw ValueError(op, "the initial state in `state`", "options with one");
  }
  RecurrentOptions with_state = options;
  with_state.initial_state = state.s;
  RecurrentResult result = recurrence(op, q, k, v, beta, with_state);
  state.s = std::move(result.state);
  return result.out;
}

RecurrentResult composite::gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& beta, const RecurrentOptions& options) {
  const RecurrentCall call(kGatedDeltaRule, q, k, v, beta, options);
  return recurrence_from_plain_ops(recurrent_tensors(q, k, v, beta, options), call);
}

}  // namespace sash
