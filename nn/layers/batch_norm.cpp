#include "batch_norm.h"

#include "../../ops/elementwise/binary.h"
#include "../../ops/norm/batch_norm.h"
#include "../../ops/norm/group_norm.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/autograd/node.h"
#include "../../tensor/autograd/recompute.h"
#include "../../tensor/factories.h"
#include "../check.h"

namespace sash::nn {
namespace {

// The sum of the ranks' x. The gradient of x is the sum of the ranks' gradients.
Tensor sum_over_ranks(const Tensor& x, const distributed::Group& ranks) {
  const Tensor y = x.detach().contiguous().clone();
  ranks.all_reduce(y);
  return record("sum_over_ranks", {x}, y, [ranks](Backward&, const Tensor& g) {
    return Gradients{sum_over_ranks(g, ranks)};
  });
}

}  // namespace

BatchNorm::BatchNorm(const char* name, int64_t channels, BatchNormOptions options, int least_rank,
                     int greatest_rank)
    : name_(name),
      channels_(channels),
      options_(options),
      least_rank_(least_rank),
      greatest_rank_(greatest_rank) {
  check_positive(name, "number of channels", channels);
  if (!(options.eps > 0)) throw ValueError(name, "eps > 0", to_text(options.eps));
  check_probability(name, "a momentum", options.momentum);
  if (options.affine) {
    weight = register_parameter("weight", ones({channels}));
    bias = register_parameter("bias", zeros({channels}));
  }
  if (options.running_stats) {
    running_mean = register_buffer("running_mean", zeros({channels}));
    running_var = register_buffer("running_var", ones({channels}));
    num_batches_tracked =
        register_buffer("num_batches_tracked", zeros({}, {.dtype = DType::int64}));
  }
}

Tensor BatchNorm::forward(const Tensor& x) {
  check_defined(name_, x);
  const int rank = x.rank();
  if (rank < least_rank_ || rank > greatest_rank_ || x.size(1) != channels_) {
    throw ShapeError(
        name_,
        "x [N, " + std::to_string(channels_) +
            (least_rank_ == 2 ? "] or [N, " + std::to_string(channels_) + ", L]" : ", H, W]"),
        to_string(x.shape()));
  }
  const bool by_batch = is_training() || !running_mean.defined();
  const Tensor y =
      by_batch && options_.ranks.size() > 1
          ? over_ranks(x)
          : batch_norm(x, running_mean, running_var, weight, bias,
                       {.training = by_batch, .momentum = options_.momentum, .eps = options_.eps});
  const bool counts = is_training() && num_batches_tracked.defined() && !recomputing();
  if (counts) num_batches_tracked.add_(1);
  return y;
}

// By the mean and variance of the batches of all ranks.
Tensor BatchNorm::over_ranks(const Tensor& x) {
  const DType wide = is_half(x.dtype()) ? DType::float32 : x.dtype();
  const Tensor all = x.to(wide);
  Dims axes{0};
  Shape shape = x.shape();  // of a statistic
  shape[0] = 1;
  for (int axis = 2; axis < x.rank(); ++axis) {
    axes.push_back(axis);
    shape[axis] = 1;
  }
  const auto elements = static_cast<double>(x.numel()) / static_cast<double>(channels_);
  const Tensor count =
      sum_over_ranks(full({}, elements, {.dtype = wide, .device = x.device()}), options_.ranks);
  const auto mean_of = [&](const Tensor& values) {
    return sum_over_ranks(values.sum(axes, true), options_.ranks) / count;
  };
  const Tensor mean = mean_of(all), centred = all - mean;
  const Tensor variance = mean_of(centred.square());
  Tensor y = centred * (variance + options_.eps).rsqrt();
  if (weight.defined()) y = y * weight.to(wide).view(shape) + bias.to(wide).view(shape);
  if (is_training() && running_mean.defined() && !recomputing()) {
    const NoGradGuard no_grad;
    const auto move = [&](Tensor& running, const Tensor& now) {
      const Tensor step = now.view({channels_}).to(running.dtype()) - running;
      running.add_(step * options_.momentum);
    };
    move(running_mean, mean.detach());
    move(running_var, variance.detach() * (count / (count - 1)));
  }
  return y.to(x.dtype());
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, GroupNormOptions options)
    : groups_(groups), channels_(channels), eps_(options.eps) {
  check_positive("GroupNorm", "number of groups", groups);
  check_positive("GroupNorm", "number of channels", channels);
  if (channels % groups != 0) {
    throw ValueError("GroupNorm", "channels that are a multiple of the groups",
                     std::to_string(channels) + " and " + std::to_string(groups));
  }
  if (!(eps_ > 0)) throw ValueError("GroupNorm", "eps > 0", to_text(eps_));
  if (!options.affine) return;
  weight = register_parameter("weight", ones({channels}));
  bias = register_parameter("bias", zeros({channels}));
}

Tensor GroupNorm::forward(const Tensor& x) {
  check_defined("GroupNorm", x);
  if (x.rank() < 2 || x.size(1) != channels_) {
    throw ShapeError("GroupNorm", "x [N, " + std::to_string(channels_) + ", ...]",
                     to_string(x.shape()));
  }
  return group_norm(x, groups_, weight, bias, eps_);
}

std::string GroupNorm::describe() const {
  return "GroupNorm(" + std::to_string(groups_) + " of " + std::to_string(channels_) +
         (weight.defined() ? ", affine)" : ")");
}

std::string BatchNorm::describe() const {
  return std::string(name_) + "(" + std::to_string(channels_) +
         (weight.defined() ? ", affine)" : ")");
}

}  // namespace sash::nn
