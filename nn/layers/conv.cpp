#include "conv.h"

#include <cmath>

#include "../../tensor/factories.h"
#include "../check.h"
#include "../init.h"

namespace sash::nn {
namespace {

/// The extents of the weight, [O, C / groups, kernel...].
Shape weight_shape(const char* op, int64_t in, int64_t out, const Shape& kernel, int64_t groups) {
  check_positive(op, "number of channels", in);
  check_positive(op, "number of channels", out);
  check_positive(op, "number of groups", groups);
  for (const int64_t extent : kernel) check_positive(op, "kernel", extent);
  if (in % groups != 0 || out % groups != 0) {
    throw ValueError(op, "channels that are a multiple of " + std::to_string(groups) + " groups",
                     std::to_string(in) + " and " + std::to_string(out));
  }
  Shape shape{out, in / groups};
  for (const int64_t extent : kernel) shape.push_back(extent);
  return shape;
}

Tensor initial(const Shape& shape, const Shape& weight) {
  const double bound =
      1 / std::sqrt(static_cast<double>(numel(weight)) / static_cast<double>(weight[0]));
  return init::uniform_(empty(shape), -bound, bound);
}

std::string text(const char* name, const Tensor& weight, int64_t groups, bool bias) {
  std::string kernel;
  for (int axis = 2; axis < weight.rank(); ++axis) {
    kernel += (axis == 2 ? "" : " x ") + std::to_string(weight.shape()[axis]);
  }
  return std::string(name) + "(" + std::to_string(weight.size(1) * groups) + " -> " +
         std::to_string(weight.size(0)) + ", kernel " + kernel + (bias ? ", bias)" : ")");
}

}  // namespace

Conv1d::Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel, Conv1dOptions options)
    : options_{.stride = options.stride,
               .padding = options.padding,
               .dilation = options.dilation,
               .groups = options.groups} {
  const Shape shape = weight_shape("Conv1d", in_channels, out_channels, {kernel}, options.groups);
  weight = register_parameter("weight", initial(shape, shape));
  if (options.bias) bias = register_parameter("bias", initial({out_channels}, shape));
}

Tensor Conv1d::forward(const Tensor& x) { return conv1d(x, weight, bias, options_); }

std::string Conv1d::describe() const {
  return text("Conv1d", weight, options_.groups, bias.defined());
}

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, HeightWidth kernel, Conv2dOptions options)
    : options_{.stride = options.stride,
               .padding = options.padding,
               .dilation = options.dilation,
               .groups = options.groups} {
  const Shape shape = weight_shape("Conv2d", in_channels, out_channels,
                                   {kernel.height, kernel.width}, options.groups);
  weight = register_parameter("weight", initial(shape, shape));
  if (options.bias) bias = register_parameter("bias", initial({out_channels}, shape));
}

Tensor Conv2d::forward(const Tensor& x) { return conv2d(x, weight, bias, options_); }

std::string Conv2d::describe() const {
  return text("Conv2d", weight, options_.groups, bias.defined());
}

}  // namespace sash::nn
