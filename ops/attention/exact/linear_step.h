#pragma once

#include <optional>

#include "../../elementwise/glu.h"
#include "../../norm/rms_norm.h"

namespace sash {

/// The ops before and after a product. An undefined tensor leaves its op out.
struct LinearStepOptions {
  Tensor norm_weight{};  ///< [in]: x is normalised by `rms_norm` with these options
  RMSNormOptions norm{};
  Tensor bias{};                  ///< [out]
  std::optional<GluKind> gate{};  ///< `glu` of the product, whose out is 2 F
  Tensor residual{};              ///< [..., out or F]: added at the end
  /// The kernel queued last on the stream, and those that it did not wait for, write neither
  /// weight: a card then fetches them while that kernel runs.
  bool weight_at_rest = false;
};

/// residual + glu(linear(rms_norm(x), weight, bias)) for x [..., in] and weight [out, in]: a branch
/// of a transformer for the few tokens of a decoding step, in one kernel. It rounds where the
/// separate ops round. Nothing is recorded for gradients. Throws as the separate ops do.
SASH_API Tensor linear_step(const Tensor& x, const Tensor& weight,
                            const LinearStepOptions& options = {});

/// Whether one kernel computes the call. If not, `linear_step` calls the separate ops.
SASH_API bool has_linear_step_kernel(const Tensor& x, const Tensor& weight);

namespace composite {
/// `linear_step` from the separate ops.
SASH_API Tensor linear_step(const Tensor& x, const Tensor& weight,
                            const LinearStepOptions& options = {});
}  // namespace composite

}  // namespace sash
