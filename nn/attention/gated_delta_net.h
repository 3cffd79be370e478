#pragma once

#include "../../ops/attention/recurrent/gated_delta_rule.h"
#include "../layers/conv.h"
#include "../layers/linear.h"
#include "../layers/rms_norm.h"
#include "attention_kind.h"
#include "key_value_cache.h"

namespace sash::nn {

/// What a `GatedDeltaNet` needs of earlier tokens; its size does not depend on their number.
struct GatedDeltaNetCache {
  Tensor inputs{};         ///< [B, kernel - 1, 2 heads head_dim + value_heads v_head_dim]
  RecurrentState state{};  ///< of `gated_delta_rule_step`
};

/// Gated DeltaNet (Yang et al., ICLR 2025) as in Qwen3-Next: queries, keys and values pass a causal
/// convolution along the tokens, one for each channel, and SiLU; then
///
///     beta = sigmoid(b),  g = -exp(A_log) softplus(a + dt_bias)
///     o = gated_delta_rule(q, k, v, beta, {.g = g, .normalize = true})
///     y = out_proj(rms_norm(o) silu(z))
///
/// where q, k, v, z, a and b are projections of x. All results are causal. Each row of a batch is
/// one text; there are no packed texts, because the convolution sees the tokens before.
///
/// Parameters, named as Qwen3-Next's, without biases; with the group G = value_heads / heads:
/// `in_proj_qkvz.weight`, for each head its q, k, G v and G z; `in_proj_ba.weight`, for each head
/// its G b and G a; `conv1d.weight` [channels, 1, kernel], of all q, then k, then v; `A_log`
/// [value_heads], at first the logarithm of U(0, 16); `dt_bias` [value_heads], at first with
/// softplus(dt_bias) log-uniform in [0.001, 0.1], as in Mamba-2; `norm.weight` [v_head_dim];
/// `out_proj.weight`.
///
/// With `kimi` it is the layer of Kimi Linear (Kimi Team, 2025). Decays are for each feature of the
/// keys, y = out_proj(rms_norm(o) sigmoid(z)), a = f_b_proj(f_a_proj(x)) and z =
/// g_b_proj(g_a_proj(x)), of rank v_head_dim. `g_b_proj` alone has a bias, `dt_bias` is
/// [value_heads head_dim], and the first two parameters are `in_proj_qkv.weight` and
/// `in_proj_b.weight`.
class SASH_API GatedDeltaNet : public ModuleOf<GatedDeltaNet> {
 public:
  using Options = GatedDeltaNetOptions;

  /// `ValueError` unless dim, heads and kernel are positive, value_heads a multiple of heads, heads
  /// a divisor of dim unless there is a head_dim, and eps above 0.
  GatedDeltaNet(int64_t dim, int64_t heads, const GatedDeltaNetOptions& options = {});

  /// x [B, S, dim] gives [B, S, dim]. `ShapeError` unless x is that.
  Tensor forward(const Tensor& x) override;
  /// The same for the tokens that follow those in `cache`, which then has these too. Gradients flow
  /// through the cache; use `NoGradGuard` to decode. `ShapeError` or `ValueError` for the cache of
  /// another layer or batch.
  Tensor forward(const Tensor& x, GatedDeltaNetCache& cache);
  /// The same with a model's cache, which keeps a `GatedDeltaNetCache` as its `summaries`.
  Tensor forward(const Tensor& x, KeyValueCache& cache);
  std::string describe() const override;

  int64_t heads() const { return heads_; }
  const GatedDeltaNetOptions& options() const { return options_; }

 private:
  int64_t channels() const;
  Linear& add(const char* name, int64_t in, int64_t out, bool bias = false);
  void check_cache(int64_t batch, const GatedDeltaNetCache& cache) const;
  Tensor convolved(const Tensor& mixed, GatedDeltaNetCache& cache) const;

  int64_t dim_, heads_;
  GatedDeltaNetOptions options_;

 public:
  Linear &in_proj_qkvz, &in_proj_ba, &out_proj;
  Linear *f_a_proj = nullptr, *f_b_proj = nullptr;  ///< of `kimi`, else null, as the next
  Linear *g_a_proj = nullptr, *g_b_proj = nullptr;
  Conv1d& conv1d;
  RMSNorm& norm;
  Tensor A_log, dt_bias;
};

}  // namespace sash::nn
