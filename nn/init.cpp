#include "init.h"

#include <cmath>
#include <limits>
#include <string>

#include "../core/error.h"
#include "../ops/checks.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/factories.h"
#include "../tensor/kernels/random.h"
#include "../tensor/random.h"
#include "../tensor/tensor_impl.h"
#include "check.h"

namespace sash::nn::init {
namespace {

void check(const char* op, const Tensor& x) {
  check_defined(op, x);
  check_floating(op, x);
}

void check_std(const char* op, double std) { check_not_negative(op, "a standard deviation", std); }

// Numbers are drawn as low + (high - low) u; halves in float32.
void check_range(const char* op, const Tensor& x, double low, double high) {
  const DType dtype = x.dtype();
  const double widest = dtype == DType::float64 ? std::numeric_limits<double>::max()
                                                : double{std::numeric_limits<float>::max()};
  const double most = dtype == DType::float16    ? 65504
                      : dtype == DType::bfloat16 ? 0x1.FEp127
                                                 : widest;
  if (x.numel() == 0 || (low >= -most && high <= most && high - low <= widest)) return;
  throw ValueError(op, "a range that " + std::string(name(dtype)) + " holds",
                   to_text(low) + " and " + to_text(high));
}

struct Fans {
  double in;
  double out;
};

Fans fans(const char* op, const Tensor& weight) {
  check(op, weight);
  check_min_rank(op, weight, 2);
  double receptive = 1;
  for (int axis = 2; axis < weight.rank(); ++axis) {
    receptive *= static_cast<double>(weight.shape()[axis]);
  }
  return {receptive * static_cast<double>(weight.shape()[1]),
          receptive * static_cast<double>(weight.shape()[0])};
}

template <class K, class... Parameters>
Tensor fill_random(const K& kernel, const Tensor& x, const Parameters&... parameters) {
  KernelContext context = kernel_context(x.device());
  kernel(context, x.tensor_view(), next_philox(x.device(), x.numel()), parameters...);
  x.impl().storage->bump_version();
  return x;
}

}  // namespace

Tensor uniform_(const Tensor& x, double low, double high) {
  check("uniform_", x);
  if (!(low <= high)) {
    throw ValueError("uniform_", "low <= high", to_text(low) + " and " + to_text(high));
  }
  check_range("uniform_", x, low, high);
  return fill_random(kernels::random_uniform, x, low, high);
}

Tensor normal_(const Tensor& x, double mean, double std) {
  check("normal_", x);
  check_std("normal_", std);
  return fill_random(kernels::random_normal, x, mean, std);
}

Tensor trunc_normal_(const Tensor& x, double mean, double std, double low, double high) {
  check("trunc_normal_", x);
  check_std("trunc_normal_", std);
  if (!(low < high)) {
    throw ValueError("trunc_normal_", "low < high", to_text(low) + " and " + to_text(high));
  }
  if (std == 0) return constant_(x, std::fmin(std::fmax(mean, low), high));
  return fill_random(kernels::random_truncated_normal, x,
                     kernels::TruncatedNormal(mean, std, low, high));
}

Tensor constant_(const Tensor& x, double value) {
  check("constant_", x);
  const NoGradGuard no_grad;
  Tensor target = x;
  return target.fill_(value);
}

Tensor zeros_(const Tensor& x) { return constant_(x, 0); }
Tensor ones_(const Tensor& x) { return constant_(x, 1); }

Tensor xavier_uniform_(const Tensor& weight, double gain) {
  const Fans fan = fans("xavier_uniform_", weight);
  const double a = gain * std::sqrt(6 / (fan.in + fan.out));
  return uniform_(weight, -a, a);
}

Tensor xavier_normal_(const Tensor& weight, double gain) {
  const Fans fan = fans("xavier_normal_", weight);
  return normal_(weight, 0, gain * std::sqrt(2 / (fan.in + fan.out)));
}

Tensor kaiming_uniform_(const Tensor& weight, double gain, Fan fan) {
  const Fans both = fans("kaiming_uniform_", weight);
  const double a = gain * std::sqrt(3 / (fan == Fan::in ? both.in : both.out));
  return uniform_(weight, -a, a);
}

Tensor kaiming_normal_(const Tensor& weight, double gain, Fan fan) {
  const Fans both = fans("kaiming_normal_", weight);
  return normal_(weight, 0, gain / std::sqrt(fan == Fan::in ? both.in : both.out));
}

}  // namespace sash::nn::init
