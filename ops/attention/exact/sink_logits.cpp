#include "sink_logits.h"

#include "../../op.h"
#include "../../shape/concat.h"

namespace sash {
namespace {

// [H] as [1, H, 1] in the dtype of lse.
Tensor per_head(const Tensor& sink_logits, const Tensor& lse) {
  return sink_logits.to(lse.dtype()).view({1, sink_logits.size(0), 1});
}

// Whether a query sees no key.
Tensor sees_none(const Tensor& lse) { return eq(lse.detach(), kInfinity); }

}  // namespace

void check_sink_logits(const Tensor& q, const Tensor& sink_logits) {
  if (!sink_logits.defined()) return;
  check_same_device("attention", q, sink_logits);
  check_floating("attention", sink_logits);
  if (sink_logits.rank() == 1 && sink_logits.size(0) == q.size(1)) return;
  throw ShapeError("attention", "sink logits [" + std::to_string(q.size(1)) + "], one per head",
                   to_string(sink_logits.shape()));
}

Tensor out_with_sinks(const AttentionWithLse& plain, const Tensor& sink_logits, DType dtype) {
  const Tensor& out = plain.out;
  const Tensor distance = plain.lse - per_head(sink_logits, plain.lse);
  const Tensor share = sigmoid(masked_fill(distance, sees_none(plain.lse), 0)).unsqueeze(-1);
  return (out * share.to(out.dtype())).to(dtype);
}

Tensor lse_with_sinks(const Tensor& lse, const Tensor& sink_logits) {
  const Tensor keys = masked_fill(lse, sees_none(lse), -kInfinity);
  const Tensor sinks = per_head(sink_logits, lse).expand(lse.shape());
  // Rows of nothing, not even a sink, count as zeros, so that no gradient is NaN.
  const Tensor nothing = logical_and(sees_none(lse), eq(sinks.detach(), -kInfinity));
  const Tensor both = masked_fill(stack({keys, sinks}, -1), nothing.unsqueeze(-1), 0);
  return masked_fill(logsumexp(both, {-1}), nothing, kInfinity);
}

}  // namespace sash
