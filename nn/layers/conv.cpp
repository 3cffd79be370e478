#include "conv.h"

#include <cmath>
#include <utility>

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

}  // namespace

Convolution::Convolution(const char* name, int64_t in_channels, int64_t out_channels,
                         const Shape& kernel, int64_t groups, bool has_bias, bool transposed)
    : groups_(groups), transposed_(transposed) {
  const Shape shape = transposed ? weight_shape(name, out_channels, in_channels, kernel, groups)
                                 : weight_shape(name, in_channels, out_channels, kernel, groups);
  weight = register_parameter("weight", initial(shape, shape));
  if (has_bias) bias = register_parameter("bias", initial({out_channels}, shape));
}

std::string Convolution::describe() const {
  std::string kernel;
  for (int axis = 2; axis < weight.rank(); ++axis) {
    kernel += (axis == 2 ? "" : " x ") + std::to_string(weight.shape()[axis]);
  }
  int64_t in = weight.size(1) * groups_, out = weight.size(0);
  if (transposed_) std::swap(in, out);
  return type_name() + "(" + std::to_string(in) + " -> " + std::to_string(out) + ", kernel " +
         kernel + (bias.defined() ? ", bias)" : ")");
}

Conv1d::Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel, Conv1dOptions options)
    : Convolution("Conv1d", in_channels, out_channels, {kernel}, options.groups, options.bias),
      options_{options.stride, options.padding, options.dilation, options.groups} {}

Tensor Conv1d::forward(const Tensor& x) { return conv1d(x, weight, bias, options_); }

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, HeightWidth kernel, Conv2dOptions options)
    : Convolution("Conv2d", in_channels, out_channels, {kernel.height, kernel.width},
                  options.groups, options.bias),
      options_{options.stride, options.padding, options.dilation, options.groups} {}

Tensor Conv2d::forward(const Tensor& x) { return conv2d(x, weight, bias, options_); }

ConvTranspose2d::ConvTranspose2d(int64_t in_channels, int64_t out_channels, HeightWidth kernel,
                                 ConvTranspose2dOptions options)
    : Convolution("ConvTranspose2d", in_channels, out_channels, {kernel.height, kernel.width},
                  options.groups, options.bias, true),
      options_{options.stride, options.padding, options.output_padding, options.dilation,
               options.groups} {}

Tensor ConvTranspose2d::forward(const Tensor& x) {
  return conv_transpose2d(x, weight, bias, options_);
}

}  // namespace sash::nn
