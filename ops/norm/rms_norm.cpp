#include "rms_norm.h"

#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/unary.h"
#include "../reduce/reduce.h"
#include "normalized_shape.h"

namespace sash {
namespace {

void check_arguments(const char* op, const Tensor& x, const Shape& normalized, const Tensor& weight,
                     const RmsNormOptions& options) {
  check_normalized(op, x, normalized, options.eps);
  if (weight.defined()) {
    check_compatible(op, x, weight);
    check_shape(op, weight, normalized);
  } else if (options.unit_offset) {
    throw ValueError(op, "a weight for unit_offset", "none");
  }
}

}  // namespace

namespace composite {

Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                const RmsNormOptions& options) {
  Dims axes;
  for (int i = -normalized_shape.rank(); i < 0; ++i) axes.push_back(i);
  const Tensor y = x * rsqrt(mean(square(x), axes, true) + options.eps);
  if (!weight.defined()) return y;
  return y * (options.unit_offset ? weight + 1.0 : weight);
}

}  // namespace composite

Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                const RmsNormOptions& options) {
  check_arguments("rms_norm", x, normalized_shape, weight, options);
  return composite::rms_norm(x, normalized_shape, weight, options);
}

SumAndNorm add_rms_norm(const Tensor& branch, const Tensor& residual, const Tensor& weight,
                        const RmsNormOptions& options) {
  const char* op = "add_rms_norm";
  check_compatible(op, branch, residual);
  check_shape(op, residual, branch.shape());
  check_min_rank(op, branch, 1);
  check_arguments(op, branch, {branch.size(-1)}, weight, options);
  const Tensor sum = residual + branch;
  return {sum, rms_norm(sum, {sum.size(-1)}, weight, options)};
}

}  // namespace sash
