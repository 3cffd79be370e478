#include "rms_norm.h"

#include "../../ops/elementwise/dropout.h"
#include "../../tensor/factories.h"
#include "../check.h"

namespace sash::nn {

RMSNorm::RMSNorm(int64_t dim, const RMSNormOptions& options) : dim_(dim), options_(options) {
  options_.unit_offset = options.affine && options.unit_offset;
  check_positive("RMSNorm", "dim", dim);
  if (!(options_.eps > 0)) throw ValueError("RMSNorm", "eps > 0", to_text(options_.eps));
  if (!options.affine) return;
  weight = register_parameter("weight", options_.unit_offset ? zeros({dim}) : ones({dim}));
}

Tensor RMSNorm::forward(const Tensor& x) { return rms_norm(x, {dim_}, weight, options_); }

SumAndNorm RMSNorm::add_and_normalise(const Tensor& branch, const Tensor& residual, double p) {
  return add_rms_norm(dropout(branch, p), residual, weight, options_);
}

std::string RMSNorm::describe() const {
  return "RMSNorm(" + std::to_string(dim_) + (options_.unit_offset ? ", 1 + weight)" : ")");
}

}  // namespace sash::nn
