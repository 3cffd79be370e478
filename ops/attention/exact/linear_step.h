#pragma once

#include <optional>

#include "../../elementwise/glu.h"
#include "../../norm/rms_norm.h"

namespace sash {

/// What stands around a product; undefined: nothing.
struct LinearStepOptions {
  Tensor norm_weight{};  ///< [in]: x is normalised by `rms_norm` with these options
  RmsNormOptions norm{};
  Tensor bias{};                  ///< [out]
  std::optional<GluKind> gate{};  ///< `glu` of the product, whose out is 2 F
  Tensor residual{};              ///< [..., out or F]: added at the end
  /// The kernel queued last on the stream, and those that it did not wait for, write neither
  /// weight: a card then fetches them while that kernel runs.
  bool weight_at_rest = false;
};

/// residual + glu(linear(rms_norm(x), weight, bias)) for x [..., in] and weight [out, in]: a branch
/// of a transformer for the few tokens of a decoding step, each product with its neighbours in one
/// kernel. Results are rounded where those of the separate ops are. Nothing is recorded for
/// gradients. Errors as those of the ops.
SASH_API Tensor linear_step(const Tensor& x, const Tensor& weight,
                            const LinearStepOptions& options = {});

/// Whether one kernel does it; if not, `linear_step` is the separate ops.
SASH_API bool has_linear_step_kernel(const Tensor& x, const Tensor& weight);

namespace composite {
/// The same from the separate ops.
SASH_API Tensor linear_step(const Tensor& x, const Tensor& weight,
                            const LinearStepOptions& options = {});
}  // namespace composite

}  // namespace sash
