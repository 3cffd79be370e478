#pragma once

#include <optional>

#include "../../../tensor/tensor.h"

namespace sash {

struct RecurrentOptions {
  /// Logarithm of the decay, at most 0: [B, H_v, S], a number for each head, or [B, H_v, S, D], one
  /// for each feature of the keys. Undefined: no decay. Dtype of q, or float32 beside halves.
  Tensor g{};
  std::optional<double> scale{};  ///< factor of the results; 1 / sqrt(D) by default
  bool normalize = false;         ///< divide each q and k by sqrt(|x|^2 + 1e-6)
  /// The state before the first token, [B, H_v, D, D_v], for packed texts [n, H_v, D, D_v];
  /// undefined: 0. float64 for float64, else float32.
  Tensor initial_state{};
  /// int32 [n + 1], for B = 1: text i has the tokens [cu_seqlens[i], cu_seqlens[i + 1]), and the
  /// state begins anew with each text. Not decreasing, from 0 to S.
  Tensor cu_seqlens{};
};

/// What a recurrence over tokens gives.
struct RecurrentResult {
  Tensor out;    ///< [B, H_v, S, D_v]
  Tensor state;  ///< as `RecurrentOptions::initial_state`: the state after the last token
};

/// The gated delta rule (Yang et al., "Gated Delta Networks", ICLR 2025). A state S [D, D_v] maps
/// keys to values; each token lets it decay, and corrects what it has for the token's key:
///
///     S[t] = (I - beta[t] k[t] k[t]') Diag(exp(g[t])) S[t - 1] + beta[t] k[t] v[t]'
///     o[t] = scale S[t]' q[t]
///
/// With a decay for each feature this is Kimi Delta Attention (Kimi Team, "Kimi Linear", 2025),
/// without decay DeltaNet (Yang et al., NeurIPS 2024).
///
/// q and k [B, H, S, D], v [B, H_v, S, D_v] and beta [B, H_v, S] give out [B, H_v, S, D_v]; H_v is
/// a multiple of H, and value head h reads query and key head floor(h H / H_v). Floating dtypes;
/// beta has that of q, or float32 beside halves. Halves are summed in float32, and the state is
/// float32 then. All tensors but `cu_seqlens` are differentiable, and so are both results.
///
/// Work is O(S D D_v), in chunks of 64 tokens (the WY form of a product of reflections); memory is
/// linear in S, with a state for each chunk between the passes. Decays enter as products of exp(g)
/// or exponentials of sums of g, all at most 1, so that none overflows.
///
/// Throws `ShapeError`, `DTypeError`, `DeviceError`, and `ValueError` for a scale that is not
/// finite or cu_seqlens that do not ascend from 0 to S.
SASH_API RecurrentResult gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Tensor& beta, const RecurrentOptions& options = {});

/// Linear attention with decay and without normaliser, S[t] = Diag(exp(g[t])) S[t - 1] + k[t]
/// v[t]': with a number for each head as in lightning attention (Qin et al., 2024) and Mamba-2,
/// with one for each feature gated linear attention (Yang et al., ICML 2024). All else is as in
/// `gated_delta_rule`.
SASH_API RecurrentResult decayed_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const RecurrentOptions& options = {});

/// The state of a recurrence after the tokens so far; undefined before the first.
struct RecurrentState {
  Tensor s{};  ///< [B, H_v, D, D_v]
};

/// For decoding: the next n tokens, which are added to `state`. Equal to `gated_delta_rule` over
/// all tokens at once, up to rounding. Gradients flow through the state; use `NoGradGuard` to
/// decode. `ValueError` if the options have an initial state.
SASH_API Tensor gated_delta_rule_step(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& beta, RecurrentState& state,
                                      const RecurrentOptions& options = {});

namespace composite {
/// The same functions from plain ops, token by token: run on backends without the kernels, give
/// second derivatives, and are the tests' reference. `gated_delta_rule` takes an undefined beta for
/// `decayed_linear_attention`.
SASH_API RecurrentResult gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Tensor& beta, const RecurrentOptions& options = {});
}  // namespace composite

}  // namespace sash
