#include <vector>

#include "../../linalg/matmul.h"
#include "../../op.h"
#include "../../shape/concat.h"
#include "../exact/head_layout.h"
#include "recurrent_call.h"

/// The recurrence from plain ops, token by token.
namespace sash {
namespace {

// x [B, H, S, D] as a row for each value head, [B, H_v, S, D], in `dtype`.
Tensor for_value_heads(const Tensor& x, int64_t heads, DType dtype) {
  const int64_t group = x.size(1) == 0 ? 0 : heads / x.size(1);
  return x.to(dtype)
      .unsqueeze(2)
      .expand({x.size(0), x.size(1), group, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

// The first token of each text, and S.
std::vector<int64_t> bounds_of(const Tensor& cu_seqlens, int64_t length) {
  if (!cu_seqlens.defined()) return {0, length};
  const Tensor on_host = cu_seqlens.to(kCPU);
  const int32_t* const begin = on_host.data<const int32_t>();
  return {begin, begin + on_host.numel()};
}

// [B, H_v, 0, D_v], with the history of all inputs: for calls without tokens.
Tensor of_no_tokens(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                    const Tensor& decay) {
  const auto none = [](const Tensor& x) { return x.narrow(2, 0, 0); };
  Tensor values = none(v), queries = none(q);
  if (beta.defined()) values = values * none(beta).unsqueeze(3);
  if (decay.defined()) queries = queries * none(decay).squeeze(4);
  return matmul(matmul(queries, none(k).mT()), values);
}

}  // namespace

RecurrentResult recurrence_from_plain_ops(const RecurrentTensors& x, const RecurrentCall& call) {
  const TensorOptions sums = row_statistics(x.q);
  const int64_t batch = x.v.size(0), heads = x.v.size(1), depth = x.q.size(3), width = x.v.size(3);
  const Tensor q = for_value_heads(x.q, heads, *sums.dtype) * call.scale;
  const Tensor k = for_value_heads(x.k, heads, *sums.dtype), v = x.v.to(*sums.dtype);
  Tensor decay;  // [B, H_v, S, D or 1, 1]
  if (x.g.defined()) decay = exp(x.g.rank() == 3 ? x.g.unsqueeze(3) : x.g).unsqueeze(4);
  const std::vector<int64_t> bounds = bounds_of(call.cu_seqlens, x.q.size(2));
  std::vector<Tensor> outs{of_no_tokens(q, k, v, x.beta, decay)};
  const Tensor no_state = zeros({0, heads, depth, width}, sums);
  // With the history of the initial state: there may be no text.
  std::vector<Tensor> states{x.initial.defined() ? x.initial.narrow(0, 0, 0) : no_state};
  for (size_t text = 0; text + 1 < bounds.size(); ++text) {
    const auto row = static_cast<int64_t>(text);
    Tensor s = !x.initial.defined()        ? zeros({batch, heads, depth, width}, sums)
               : call.cu_seqlens.defined() ? x.initial.narrow(0, row, 1)
                                           : x.initial;
    for (int64_t t = bounds[text]; t < bounds[text + 1]; ++t) {
      const Tensor key = k.narrow(2, t, 1);
      Tensor u = v.narrow(2, t, 1);
      if (decay.defined()) s = s * decay.select(2, t);
      if (x.beta.defined()) u = x.beta.narrow(2, t, 1).unsqueeze(3) * (u - matmul(key, s));
      s = s + matmul(key.mT(), u);
      outs.push_back(matmul(q.narrow(2, t, 1), s));
    }
    states.push_back(s);
  }
  return {cat(outs, 2).to(x.q.dtype()), cat(states, 0)};
}

}  // namespace sash
