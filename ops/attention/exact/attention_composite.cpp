#include <cmath>

#include "../../../tensor/random.h"
#include "../../index/gather.h"
#include "../../kernels/attention.h"
#include "../../linalg/matmul.h"
#include "../../norm/softmax.h"
#include "../../op.h"
#include "attention_call.h"
#include "head_layout.h"
#include "sink_logits.h"

/// Attention from plain ops, with the full matrix of scores.
namespace sash {
namespace {

// j - p for every pair: int64 [S_q, S_k].
Tensor distances(const MaskShape& shape, Device device) {
  const TensorOptions options{.device = device};
  return arange(0, shape.keys, 1, options).unsqueeze(0) -
         arange(shape.offset(), shape.keys, 1, options).unsqueeze(1);
}

// relative_bias [H or 1, 2 R + 1] as [1, H or 1, S_q, S_k].
Tensor relative_scores(const Tensor& relative_bias, const MaskShape& shape) {
  const int64_t reach = relative_bias.size(1) / 2;
  const Tensor index = clamp(distances(shape, relative_bias.device()), -reach, reach) + reach;
  const Tensor flat = index.reshape({1, -1}).expand({relative_bias.size(0), index.numel()});
  return gather(relative_bias, 1, flat)
      .reshape({1, relative_bias.size(0), shape.queries, shape.keys});
}

// The scores [B, H, S_q, S_k], -inf where hidden. As in the kernels, they and all that follows are
// of the accumulation dtype.
Tensor scores_of(const AttentionTensors& x, const AttentionCall& call) {
  const DType wide = call.accumulation_dtype();
  const Tensor k = x.k.to(wide);
  Tensor scores =
      matmul(detail::grouped_heads(x.q.to(wide), k.size(1)), k.unsqueeze(2).mT()) * call.scale;
  scores = scores.reshape(call.weights_shape());
  if (call.softcap > 0) scores = tanh(scores / call.softcap) * call.softcap;
  if (x.bias.defined()) scores = scores + x.bias.to(wide);
  if (x.relative_bias.defined()) {
    scores = scores + relative_scores(x.relative_bias.to(wide), call.shape);
  }
  if (call.slopes.defined()) {
    const Tensor slopes = call.slopes.to(wide).view({1, call.shape.heads, 1, 1});
    scores = scores - slopes * abs(distances(call.shape, scores.device())).to(wide);
  }
  if (call.mask.shows_all()) return scores;
  const Tensor hidden = logical_not(call.mask.to_dense(call.shape, scores.device()));
  return masked_fill(scores, hidden.expand(call.weights_shape()), -kInfinity);
}

Tensor weights_of(const Tensor& scores, const AttentionCall& call) {
  const Tensor weights = softmax(scores, -1);
  if (call.dropout == 0) return weights;
  const Tensor kept = empty(weights.shape(), {.dtype = DType::boolean, .device = weights.device()});
  run_kernel(kernels::attention_dropout, kept, call.philox, call.dropout);
  return weights * kept.to(weights.dtype()) * kernels::AttentionDropout(call.dropout).factor();
}

// The log-sum-exp of each row; +inf where nothing is visible.
Tensor lse_of(const Tensor& scores, const AttentionCall& call) {
  if (call.shape.keys == 0) {
    return full({call.shape.batch, call.shape.heads, call.shape.queries}, kInfinity,
                scores.options());
  }
  // Rows without a visible key count as zeros, so that no gradient is NaN.
  const Tensor hidden = eq(amax(scores.detach(), {-1}, true), -kInfinity);
  const Tensor lse = logsumexp(masked_fill(scores, hidden, 0), {-1});
  return masked_fill(lse, hidden.squeeze(-1), kInfinity);
}

}  // namespace

AttentionWithLse attention_from_plain_ops(const AttentionTensors& x, const AttentionCall& call) {
  const Tensor scores = scores_of(x, call);
  const Tensor weights = weights_of(scores, call);
  const Tensor v = x.v.to(weights.dtype());
  return {matmul(detail::grouped_heads(weights, v.size(1)), v.unsqueeze(2))
              .reshape({x.q.size(0), x.q.size(1), x.q.size(2), v.size(3)})
              .to(call.dtype),
          lse_of(scores, call)};
}

AttentionWithLse composite::attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const AttentionOptions& options, PhiloxState philox) {
  const AttentionTensors inputs{q, k, v, options.bias, options.relative_bias};
  AttentionCall call(inputs, options);
  check_sink_logits(q, options.sink_logits);
  call.philox = philox;
  if (options.sink_logits.defined() && is_half(q.dtype())) call.dtype = DType::float32;
  const AttentionWithLse plain = attention_from_plain_ops(inputs, call);
  if (!options.sink_logits.defined()) return plain;
  return {out_with_sinks(plain, options.sink_logits, q.dtype()),
          lse_with_sinks(plain.lse, options.sink_logits)};
}

Tensor attention_probabilities(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  if (Autocast cast("attention"); cast) {
    return attention_probabilities(cast(q), cast(k), cast_biases(options, cast));
  }
  const AttentionTensors inputs{q, k, k, options.bias, options.relative_bias};
  AttentionCall call(inputs, options);
  check_sink_logits(q, options.sink_logits);
  call.draw_dropout(q.device());
  const Tensor scores = scores_of(inputs, call), weights = weights_of(scores, call);
  if (!options.sink_logits.defined()) return weights.to(call.dtype);
  return out_with_sinks({weights, lse_of(scores, call)}, options.sink_logits, call.dtype);
}

}  // namespace sash
