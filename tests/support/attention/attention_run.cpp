#include "attention_run.h"

#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../op_inputs.h"

namespace sash::testing {

AttentionResults run_attention(const AttentionProblem& p, const AttentionMask& mask, DType dtype,
                               Device device) {
  const auto variable = [&](const Array& x) {
    return x.shape == Shape{0} ? Tensor() : to_tensor(x, dtype, device).requires_grad_();
  };
  const Tensor q = variable(p.q), k = variable(p.k), v = variable(p.v);
  AttentionOptions options{.mask = mask,
                           .scale = p.scale,
                           .softcap = p.softcap,
                           .bias = variable(p.bias),
                           .relative_bias = variable(p.relative_bias),
                           .dropout = p.dropout};
  if (!p.slopes.empty()) {
    options.alibi_slopes =
        tensor(p.slopes, {static_cast<int64_t>(p.slopes.size())}).to(DType::float32).to(device);
  }
  manual_seed(p.seed);
  const AttentionWithLse y = attention_with_lse(q, k, v, options);
  backward({y.out, y.lse},
           {to_tensor(p.g, dtype, device), to_tensor(p.g_lse, y.lse.dtype(), device)});
  const auto gradient = [](const Tensor& x) { return x.defined() ? x.grad() : Tensor(); };
  return {y.out,
          y.lse,
          q.grad(),
          k.grad(),
          v.grad(),
          gradient(options.bias),
          gradient(options.relative_bias)};
}

}  // namespace sash::testing
