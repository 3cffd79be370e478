#include "batch_norm.h"

#include <array>
#include <optional>
#include <span>

#include "../../tensor/autograd/recompute.h"
#include "../kernels/norm.h"
#include "../op.h"
#include "../reduce/moments.h"
#include "scaled.h"

namespace sash {

constinit decltype(kernels::scale_channels) kernels::scale_channels{"scale_channels"};

namespace {

constexpr const char* kBatchNorm = "batch_norm";

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

using detail::scaled;

/// What the elements are normalised by, each [C].
struct Statistics {
  Tensor mean;
  Tensor rstd;
};

/// From plain ops: by the statistics of x if there are none.
Tensor normalised(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const std::optional<Statistics>& statistics, double eps) {
  Tensor y;
  if (statistics) {
    y = (x - per_channel(statistics->mean, x)) * per_channel(statistics->rstd, x);
  } else {
    const Dims axes = all_but_channels(x);
    const Tensor centred = x - mean(x, axes, true);
    y = centred * rsqrt(mean(square(centred), axes, true) + eps);
  }
  if (weight.defined()) y = y * per_channel(weight, x);
  return bias.defined() ? y + per_channel(bias, x) : y;
}

/// Of y = z weight + bias with z = (x - mean) rstd: dweight = sum g z, dbias = sum g and, where
/// mean and rstd are those of the n elements of x, dx = weight rstd (g - dbias / n - z dweight /
/// n).
Gradients gradients(const Tensor& x, const Tensor& weight, const Statistics& by, bool of_x,
                    const Tensor& g, const Backward& pass) {
  const Dims axes = all_but_channels(x);
  const Tensor scale = weight.defined() ? weight * by.rstd : by.rstd, none = zeros_like(by.mean);
  Tensor dweight, dbias;
  if (of_x || pass.needs(1)) dweight = sum(scaled(x, by.mean, by.rstd, none).mul_(g), axes);
  if (of_x || pass.needs(2)) dbias = sum(g, axes);
  Gradients found(3);
  if (pass.needs(1)) found[1] = dweight;
  if (pass.needs(2)) found[2] = dbias;
  if (!pass.needs(0)) return found;
  if (!of_x) {
    found[0] = scaled(g, none, scale, none);
    return found;
  }
  const auto count = static_cast<double>(x.numel() == 0 ? 1 : x.numel() / x.size(1));
  found[0] = scaled(g, dbias / count, scale, none);
  found[0].sub_(scaled(x, by.mean, scale * by.rstd * dweight / count, none));
  return found;
}

void check_arguments(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                     const Tensor& weight, const Tensor& bias, const BatchNormOptions& options) {
  check_floating(kBatchNorm, x);
  check_min_rank(kBatchNorm, x, 2);
  for (const Tensor* part : {&running_mean, &running_var, &weight, &bias}) {
    if (!part->defined()) continue;
    check_same_device(kBatchNorm, x, *part);
    check_floating(kBatchNorm, *part);
    check_shape(kBatchNorm, *part, {x.size(1)});
  }
  for (const Tensor* part : {&weight, &bias}) {
    if (part->defined()) check_same_dtype(kBatchNorm, x, *part);
  }
  if (!options.training && !(running_mean.defined() && running_var.defined())) {
    throw ValueError(kBatchNorm, "running statistics, or training", "neither");
  }
  if (!(options.eps >= 0)) throw ValueError(kBatchNorm, "eps of at least 0", to_text(options.eps));
  check_probability(kBatchNorm, "a momentum", options.momentum);
  if (options.training && x.numel() > 0 && x.numel() / x.size(1) < 2) {
    throw ShapeError(kBatchNorm, "at least two elements a channel in training",
                     to_string(x.shape()));
  }
}

void move_towards(Tensor running, const Tensor& value, double momentum) {
  if (!running.defined()) return;
  const Tensor old = running.to(value.dtype());
  running.copy_(old + (value.view(running.shape()) - old) * momentum);
}

}  // namespace

Tensor detail::scaled(const Tensor& x, const Tensor& mean, const Tensor& scale,
                      const Tensor& shift) {
  const Tensor from = x.contiguous(), y = empty(x.shape(), x.options());
  const int64_t channels = mean.numel();
  const int64_t items = channels == 0 ? 0 : x.size(0) * x.size(1) / channels;
  const Shape shape{items, channels, x.numel() == 0 ? 0 : x.numel() / (items * channels)};
  run_kernel(kernels::scale_channels, contiguous_view(from, shape), mean.contiguous(),
             scale.contiguous(), shift.contiguous(), contiguous_view(y, shape));
  return y;
}

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, const BatchNormOptions& options) {
  if (Autocast cast(kBatchNorm); cast) {
    return batch_norm(cast(x), running_mean, running_var, cast(weight), cast(bias), options);
  }
  check_arguments(x, running_mean, running_var, weight, bias, options);
  if (is_half(x.dtype())) {
    const auto wide = [](const Tensor& t) { return cast_to(t, DType::float32); };
    return batch_norm(wide(x), running_mean, running_var, wide(weight), wide(bias), options)
        .to(x.dtype());
  }
  const auto fixed = unrecorded([&] {
    if (!options.training) {
      return Statistics{running_mean.to(x.dtype()).clone(),
                        rsqrt(running_var.to(x.dtype()) + options.eps)};
    }
    const double count = x.numel() == 0 ? 2 : static_cast<double>(x.numel() / x.size(1));
    Shape kept = Shape::filled(x.rank(), 1);
    kept[1] = x.size(1);
    const auto [var, mean] = detail::moments(x, kept, count);
    if (x.numel() > 0 && !recomputing()) {  // the moments of nothing are NaN
      move_towards(running_mean, mean, options.momentum);
      move_towards(running_var, var * (count / (count - 1)), options.momentum);
    }
    return Statistics{mean.view(x.size(1)), rsqrt(var.view(x.size(1)) + options.eps)};
  });
  const Tensor y = unrecorded([&] {
    return scaled(x, fixed.mean, weight.defined() ? weight * fixed.rstd : fixed.rstd,
                  bias.defined() ? bias : zeros_like(fixed.mean));
  });
  return record(kBatchNorm, {x, weight, bias}, y,
                [x = save(x), weight = save(weight), bias = save(bias), fixed, options](
                    Backward& pass, const Tensor& g) {
                  if (!pass.create_graph()) {
                    return gradients(pass(x), pass(weight), fixed, options.training, g, pass);
                  }
                  const auto given = options.training ? std::nullopt : std::optional(fixed);
                  return gradients_of_composite(pass, g, normalised,
                                                std::array{pass(x), pass(weight), pass(bias)},
                                                given, options.eps);
                });
}

}  // namespace sash
