#include "bincount.h"

#include <algorithm>

#include "../op.h"
#include "gather.h"

namespace sash {

Tensor bincount(const Tensor& x, const Tensor& weights, int64_t min_length) {
  constexpr const char* op = "bincount";
  check_not_bool(op, x);
  if (!is_integral(x.dtype())) throw DTypeError(op, "integers", name(x.dtype()));
  check_rank(op, x, 1);
  check_not_negative(op, "min_length", min_length);
  if (weights.defined()) {
    check_same_device(op, x, weights);
    check_shape(op, weights, x.shape());
  }
  const NoGradGuard no_grad;
  int64_t length = min_length;
  if (x.numel() > 0) {
    const auto least = amin(x).item<int64_t>();
    if (least < 0) throw ValueError(op, "elements of at least 0", std::to_string(least));
    length = std::max(length, amax(x).item<int64_t>() + 1);
  }
  DType dtype = DType::int64;
  if (weights.defined()) {
    dtype = weights.dtype() == DType::float32 ? DType::float32 : DType::float64;
  }
  const TensorOptions options{.dtype = dtype, .device = x.device()};
  const Tensor counts = weights.defined() ? weights.to(dtype) : ones({}, options).expand(x.shape());
  return index_add(zeros({length}, options), 0, x.to(DType::int64), counts);
}

}  // namespace sash
