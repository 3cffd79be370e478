#include "pool.h"

namespace sash::nn {

Tensor MaxPool1d::forward(const Tensor& x) { return max_pool1d(x, kernel_, options_); }
Tensor MaxPool2d::forward(const Tensor& x) { return max_pool2d(x, kernel_, options_); }
Tensor AvgPool1d::forward(const Tensor& x) { return avg_pool1d(x, kernel_, options_); }
Tensor AvgPool2d::forward(const Tensor& x) { return avg_pool2d(x, kernel_, options_); }

}  // namespace sash::nn
