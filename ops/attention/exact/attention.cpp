#include "attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "../../../tensor/random.h"
#include "../../kernels/attention.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "../mask/block_map_cache.h"
#include "attention_call.h"
#include "attention_recorder.h"
#include "head_layout.h"
#include "selected_attention.h"
#include "sink_logits.h"

namespace sash {

namespace kernels {
constinit decltype(attention_forward) attention_forward{"attention_forward"};
constinit decltype(attention_backward) attention_backward{"attention_backward"};
constinit decltype(attention_block_rows) attention_block_rows{"attention_block_rows"};
constinit decltype(attention_kept_bytes) attention_kept_bytes{"attention_kept_bytes"};
constinit decltype(attention_dropout) attention_dropout{"attention_dropout"};
}  // namespace kernels

namespace {

using detail::with_unit_rows;

// The block map that the kernel of `pass` reads, which the current stream may read from now on.
std::shared_ptr<const CompiledBlockMap> block_map_for(const AttentionCall& call,
                                                      KernelContext& context,
                                                      const kernels::AttentionInputs& inputs,
                                                      kernels::AttentionPass pass) {
  int64_t query_rows = 0;
  kernels::attention_block_rows(context, inputs, pass, query_rows);
  const bool kept = call.forward_map && call.forward_map->map.query_rows == query_rows;
  auto compiled = kept ? call.forward_map : naming_mask(call.mask, "attention", [&] {
    return cached_block_map(call.pattern, call.shape, query_rows, context.device);
  });
  compiled->use();
  return compiled;
}

// A call's parameters as kernels take them; borrows from its arguments.
class Params {
 public:
  Params(const AttentionCall& call, const AttentionTensors& inputs,
         const CompiledBlockMap& compiled) {
    const NoGradGuard no_grad;
    const DType accumulator = call.accumulation_dtype();
    params_ = {.scale = call.scale,
               .softcap = call.softcap,
               .map = compiled.map,
               .bounds = views_(call.bounds),
               .dropout = call.dropout,
               .philox = call.philox,
               .kept = views_(call.kept)};
    if (inputs.bias.defined()) params_.bias = views_(inputs.bias.expand(call.weights_shape()));
    if (inputs.relative_bias.defined()) {
      const int64_t distances = inputs.relative_bias.size(1);
      params_.relative_bias =
          views_(inputs.relative_bias.to(accumulator).expand({call.shape.heads, distances}));
    }
    if (call.slopes.defined()) params_.slopes = views_(call.slopes.to(accumulator));
  }
  const kernels::AttentionParams& get() const { return params_; }

 private:
  OptionalViews<5> views_;
  kernels::AttentionParams params_;
};

kernels::AttentionInputs views_of(const std::array<Tensor, 3>& x) {
  return {x[0].tensor_view(), x[1].tensor_view(), x[2].tensor_view()};
}

std::array<Tensor, 3> all_with_unit_rows(const AttentionTensors& inputs) {
  return {with_unit_rows(inputs.q), with_unit_rows(inputs.k), with_unit_rows(inputs.v)};
}

// The gradient of the relative bias from those of each batch and head [B, H, 2 R + 1].
Tensor relative_gradient(const Tensor& each, const Tensor& relative_bias) {
  return sum_to(each, {1, relative_bias.size(0), each.size(2)})
      .reshape(relative_bias.shape())
      .to(relative_bias.dtype());
}

AttentionTensors in_float32(const AttentionTensors& x) {
  const auto wide = [](const Tensor& t) { return cast_to(t, DType::float32); };
  return {wide(x.q), wide(x.k), wide(x.v), wide(x.bias), wide(x.relative_bias)};
}

// Heads of more than 256 features, for which CUDA has kernels of float32 alone.
bool wide_on_cuda(const AttentionTensors& x) {
  return x.q.device().is_cuda() && std::max(x.q.size(3), x.v.size(3)) > 256;
}

bool computes_in_float32(const AttentionTensors& x) {
  return is_half(x.q.dtype()) && wide_on_cuda(x);
}

// Where the forward kernel leaves what dropout keeps; undefined if no backward pass will read it.
Tensor memory_for_kept(const AttentionCall& call, const AttentionTensors& x,
                       KernelContext& context) {
  const TensorRef inputs[] = {x.q, x.k, x.v, x.bias, x.relative_bias};
  if (call.dropout == 0 || !detail::should_record(inputs) ||
      !kernels::attention_kept_bytes.has(context.device.type)) {
    return {};
  }
  int64_t bytes = 0;
  kernels::attention_kept_bytes(context, views_of(all_with_unit_rows(x)),
                                Params(call, x, *call.forward_map).get(), bytes);
  if (bytes == 0) return {};
  return empty({bytes}, {.dtype = DType::uint8, .device = context.device});
}

}  // namespace

bool has_attention_kernels(Device device) {
  return use_fused(kernels::attention_forward, device) &&
         use_fused(kernels::attention_backward, device);
}

AttentionWithLse run_attention(const AttentionTensors& x, AttentionCall& call) {
  if (computes_in_float32(x)) {
    const NoGradGuard no_grad;
    const AttentionWithLse y = run_attention(in_float32(x), call);
    return {y.out.to(x.q.dtype()), y.lse};
  }
  AttentionWithLse y{detail::empty_in_layout_of(x.q, x.v.size(3)),
                     empty({x.q.size(0), x.q.size(1), x.q.size(2)}, row_statistics(x.q))};
  KernelContext context = kernel_context(x.q.device());
  const std::array<Tensor, 3> qkv = all_with_unit_rows(x);
  const kernels::AttentionInputs views = views_of(qkv);
  if (call.selects()) {
    kernels::selected_attention_forward(context, views, SelectedParams(call).get(),
                                        y.out.tensor_view(), y.lse.tensor_view());
    return y;
  }
  call.forward_map = block_map_for(call, context, views, kernels::AttentionPass::forward);
  call.kept = memory_for_kept(call, x, context);
  kernels::attention_forward(context, views, Params(call, x, *call.forward_map).get(),
                             y.out.tensor_view(), y.lse.tensor_view());
  return y;
}

Gradients run_attention_backward(const AttentionCotangents& g, const AttentionTensors& inputs,
                                 const Tensor& out, const Tensor& lse, const AttentionCall& call) {
  const NoGradGuard no_grad;
  if (computes_in_float32(inputs)) {
    Gradients gradients =
        run_attention_backward({cast_to(g.out, DType::float32), g.lse, g.bias, g.relative_bias},
                               in_float32(inputs), out.to(DType::float32), lse, call);
    for (Tensor& gradient : gradients) gradient = cast_to(gradient, out.dtype());
    return gradients;
  }
  const std::array<Tensor, 3> qkv = all_with_unit_rows(inputs);
  const TensorOptions accumulator = lse.options();
  const Tensor g_out = with_unit_rows(g.out.defined() ? g.out : zeros_like(out));
  const Tensor g_lse = g.lse.defined() ? g.lse.contiguous() : Tensor();
  const auto [dq, dk, dv] = detail::empty_gradients(qkv);
  Gradients gradients{dq, dk, dv, {}, {}};
  Tensor dbias, drelative;
  if (g.bias) dbias = zeros(call.weights_shape(), accumulator);
  if (g.relative_bias) {
    drelative =
        empty({call.shape.batch, call.shape.heads, inputs.relative_bias.size(1)}, accumulator);
  }
  OptionalViews<3> optional;
  KernelContext context = kernel_context(out.device());
  const kernels::AttentionInputs views = views_of(qkv);
  const kernels::AttentionGradients operands{.g = g_out.tensor_view(),
                                             .g_lse = optional(g_lse),
                                             .out = out.tensor_view(),
                                             .lse = lse.tensor_view(),
                                             .dq = gradients[0].tensor_view(),
                                             .dk = gradients[1].tensor_view(),
                                             .dv = gradients[2].tensor_view(),
                                             .dbias = optional(dbias),
                                             .drelative = optional(drelative)};
  if (call.selects()) {
    kernels::selected_attention_backward(context, views, SelectedParams(call).get(), operands);
    return gradients;
  }
  const auto compiled = block_map_for(call, context, views, kernels::AttentionPass::backward);
  kernels::attention_backward(context, views, Params(call, inputs, *compiled).get(), operands);
  if (g.bias) gradients[3] = sum_to(dbias, inputs.bias.shape()).to(inputs.bias.dtype());
  if (g.relative_bias) gradients[4] = relative_gradient(drelative, inputs.relative_bias);
  return gradients;
}

namespace {

// out and lse as one vector of the dtype of lse, to differentiate both at once.
Tensor joined(const Tensor& out, const Tensor& lse) {
  return cat({out.to(lse.dtype()).reshape({-1}), lse.reshape({-1})});
}

Gradients composite_backward(const AttentionCotangents& g, const AttentionTensors& inputs,
                             const Tensor& out, const Tensor& lse, const AttentionCall& call,
                             const Backward& pass) {
  const Tensor cotangent =
      joined(g.out.defined() ? g.out : zeros_like(out), g.lse.defined() ? g.lse : zeros_like(lse));
  const auto composite = [&call](const auto&... x) {
    const AttentionWithLse y = attention_from_plain_ops({x...}, call);
    return joined(y.out, y.lse);
  };
  return gradients_of_composite(
      pass, cotangent, composite,
      std::array{inputs.q, inputs.k, inputs.v, inputs.bias, inputs.relative_bias});
}

AttentionWithLse fused_attention(const AttentionTensors& x, AttentionCall call) {
  const AttentionWithLse y = run_attention(x, call);
  std::array<Tensor, 2> results{y.out, y.lse};
  SmallVector<Saved, 2> data;  // of the mask, and ALiBi's slopes
  for (const Tensor& tensor : call.mask_tensors()) data.push_back(save(tensor));
  if (call.slopes.defined()) data.push_back(save(call.slopes));
  record(
      "attention", {x.q, x.k, x.v, x.bias, x.relative_bias}, results,
      [q = save(x.q), k = save(x.k), v = save(x.v), bias = save(x.bias),
       relative_bias = save(x.relative_bias), out = save_output(results[0], 0),
       lse = save_output(results[1], 1), data = std::move(data),
       call = std::move(call)](Backward& pass, std::span<const Tensor> grads) {
        const AttentionTensors inputs{pass(q), pass(k), pass(v), pass(bias), pass(relative_bias)};
        for (const Saved& tensor : data) pass(tensor);  // throws if it was overwritten
        const AttentionCotangents g{grads[0], grads[1], inputs.bias.defined() && pass.needs(3),
                                    inputs.relative_bias.defined() && pass.needs(4)};
        return pass.create_graph() ? composite_backward(g, inputs, pass(out), pass(lse), call, pass)
                                   : run_attention_backward(g, inputs, pass(out), pass(lse), call);
      });
  return {results[0], results[1]};
}

AttentionWithLse checked_attention(const AttentionTensors& inputs,
                                   const AttentionOptions& options) {
  AttentionCall call(inputs, options);
  check_sink_logits(inputs.q, options.sink_logits);
  const Device device = inputs.q.device();
  call.draw_dropout(device);
  if (!has_attention_kernels(device) ||
      (inputs.q.dtype() == DType::float64 && wide_on_cuda(inputs))) {
    return attention_from_plain_ops(inputs, call);
  }
  call.prepare_kernels(device);
  return fused_attention(inputs, std::move(call));
}

// Without `with_lse`, the result's lse is without the sink logits.
AttentionWithLse attention_of(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionOptions& options, bool with_lse) {
  if (Autocast cast("attention"); cast) {
    return attention_of(cast(q), cast(k), cast(v), cast_biases(options, cast), with_lse);
  }
  const Tensor& sinks = options.sink_logits;
  const AttentionTensors inputs{q, k, v, options.bias, options.relative_bias};
  const AttentionWithLse plain = naming_mask(options.mask, "attention_mask", [&] {
    if (!sinks.defined() || !is_half(q.dtype()) || !q.device().is_cpu()) {
      return checked_attention(inputs, options);
    }
    // Kernels would round halves before the sinks' share multiplies them.
    const AttentionCall checks(inputs, options);
    return checked_attention(in_float32(inputs), options);
  });
  AttentionRecorder::notify(q, k, options);
  if (!sinks.defined()) return plain;
  return {out_with_sinks(plain, sinks, q.dtype()),
          with_lse ? lse_with_sinks(plain.lse, sinks) : plain.lse};
}

}  // namespace

AttentionWithLse attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  return attention_of(q, k, v, options, true);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  return attention_of(q, k, v, options, false).out;
}

}  // namespace sash
