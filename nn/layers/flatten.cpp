#include "flatten.h"

namespace sash::nn {

Tensor Flatten::forward(const Tensor& x) { return x.flatten(first_axis_, last_axis_); }

}  // namespace sash::nn
