#include "batch_norm.h"

#include <array>
#include <span>
#include <utility>

#include "../../tensor/autograd/node.h"
#include "../autocast.h"
#include "../checks.h"
#include "../elementwise/binary.h"
#include "../elementwise/unary.h"
#include "../reduce/reduce.h"

namespace sash {
namespace {

constexpr const char* kOp = "batch_norm";

/// [C] as it broadcasts to x [N, C, ...].
Tensor per_channel(const Tensor& values, const Tensor& x) {
  Shape shape = Shape::filled(x.rank(), 1);
  shape[1] = x.size(1);
  return values.view(shape);
}

Dims all_but_channels(const Tensor& x) {
  Dims axes{0};
  for (int axis = 2; axis < x.rank(); ++axis) axes.push_back(axis);
  return axes;
}

Tensor scaled(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!weight.defined()) return bias.defined() ? x + per_channel(bias, x) : x;
  Tensor y = x * per_channel(weight, x);
  if (bias.defined()) y.add_(per_channel(bias, x));
  return y;
}

/// y = (x - mean) / sqrt(var + eps) by the batch, as one op. Its gradient is
/// s (g - mean(g) - y mean(g y)) with s = 1 / sqrt(var + eps), a second result, so that the
/// gradient can be differentiated: ds/dx = -s^2 y / n.
Tensor normalized(const Tensor& x, const Tensor& centred, const Tensor& variance, double eps) {
  std::array<Tensor, 2> results;
  {
    const NoGradGuard no_grad;
    results[1] = rsqrt(variance + eps);
    results[0] = centred * results[1];
  }
  record(kOp, {x}, results,
         [y = save_output(results[0], 0), s = save_output(results[1], 1)](
             Backward& pass, std::span<const Tensor> grads) {
           const Tensor value = pass(y), scale = pass(s);
           const Dims axes = all_but_channels(value);
           Tensor gradient;
           if (grads[0].defined()) {
             const Tensor& g = grads[0];
             const Tensor along = value * mean(g * value, axes, true);
             gradient = (g - mean(g, axes, true) - along) * scale;
           }
           if (grads[1].defined()) {
             const auto count = static_cast<double>(value.numel() / value.size(1));
             const Tensor part = value * (grads[1] * square(scale) * (-1 / count));
             gradient = gradient.defined() ? gradient + part : part;
           }
           return Gradients{gradient};
         });
  return results[0];
}

void check_arguments(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                     const Tensor& weight, const Tensor& bias, const BatchNormOptions& options) {
  check_defined(kOp, x);
  check_floating(kOp, x);
  check_min_rank(kOp, x, 2);
  for (const Tensor* part : {&running_mean, &running_var, &weight, &bias}) {
    if (!part->defined()) continue;
    check_same_device(kOp, x, *part);
    check_floating(kOp, *part);
    check_shape(kOp, *part, {x.size(1)});
  }
  for (const Tensor* part : {&weight, &bias}) {
    if (part->defined()) check_same_dtype(kOp, x, *part);
  }
  if (!options.training && !(running_mean.defined() && running_var.defined())) {
    throw ValueError(kOp, "running statistics, or training", "neither");
  }
  if (!(options.eps >= 0)) throw ValueError(kOp, "eps of at least 0", to_text(options.eps));
  check_probability(kOp, "a momentum", options.momentum);
  if (options.training && x.numel() > 0 && x.numel() / x.size(1) < 2) {
    throw ShapeError(kOp, "at least two elements a channel in training", to_string(x.shape()));
  }
}

void move_towards(Tensor running, const Tensor& value, double momentum) {
  if (!running.defined()) return;
  const Tensor old = running.to(value.dtype());
  running.copy_(old + (value.view(running.shape()) - old) * momentum);
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, const BatchNormOptions& options) {
  if (Autocast cast(kOp); cast) {
    return batch_norm(cast(x), running_mean, running_var, cast(weight), cast(bias), options);
  }
  check_arguments(x, running_mean, running_var, weight, bias, options);
  if (is_half(x.dtype())) {
    const auto wide = [](const Tensor& t) { return t.defined() ? t.to(DType::float32) : t; };
    return batch_norm(wide(x), running_mean, running_var, wide(weight), wide(bias), options)
        .to(x.dtype());
  }
  if (!options.training) {
    const Tensor rate = rsqrt(running_var.detach().to(x.dtype()) + options.eps);
    const Tensor scale = weight.defined() ? weight * rate : rate;
    const Tensor shift = running_mean.detach().to(x.dtype()) * scale;
    return scaled(x, scale, bias.defined() ? bias - shift : -shift);
  }
  const Dims axes = all_but_channels(x);
  const auto [centred, variance] = [&]() -> std::pair<Tensor, Tensor> {
    const NoGradGuard no_grad;
    const Tensor centre = mean(x, axes, true);
    const Tensor difference = x - centre;
    const Tensor spread = mean(square(difference), axes, true);
    const auto count = static_cast<double>(x.numel() == 0 ? 2 : x.numel() / x.size(1));
    move_towards(running_mean, centre, options.momentum);
    move_towards(running_var, spread * (count / (count - 1)), options.momentum);
    return {difference, spread};
  }();
  return scaled(normalized(x, centred, variance, options.eps), weight, bias);
}

}  // namespace sash
