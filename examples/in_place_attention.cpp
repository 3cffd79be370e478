#include <cmath>
#include <cstdio>

#include <sash/core/backend/backend.h>
#include <sash/sash.h>

using namespace sash;

namespace {

double scale(int64_t features) { return 1 / std::sqrt(static_cast<double>(features)); }

// A block of attention at inference, out of place.
Tensor plain_block(const Tensor& x, const Tensor& weight) {
  const int64_t features = x.size(1);
  const Tensor p = softmax(matmul(x, x.mT()) * scale(features));
  return layer_norm(matmul(p, matmul(x, weight)), {features}, {}, {}, 1e-6);
}

// Each step in the place of the one before: no second buffer of the scores' size.
Tensor block(Tensor x, const Tensor& weight) {
  const int64_t features = x.size(1);
  Tensor p = matmul(x, x.mT());
  softmax_(p.mul_(scale(features)));
  matmul_(x, weight);  // x <- x W; with W' it is matmul_(x, weight.mT())
  const Tensor y = matmul(p, x);
  return layer_norm_(y, {features}, {}, {}, 1e-6);
}

// The most memory that `call` needs, in MiB.
template <class Call>
double peak_mib(Device device, Call&& call) {
  synchronize(device);
  backend(device.type).reset_peak(device);
  const int64_t before = memory_stats(device).current;
  call();
  synchronize(device);
  return static_cast<double>(memory_stats(device).peak - before) / (1 << 20);
}

}  // namespace

int main() {
  const NoGradGuard no_grad;
  const Device device = "auto";
  const int64_t tokens = 2048, features = 128;
  const Tensor x = randn({tokens, features}, {.device = device});
  const Tensor weight = randn({features, features}, {.device = device}) * scale(features);

  Tensor plain, y;
  const double out_of_place = peak_mib(device, [&] { plain = plain_block(x, weight); });
  const double in_place = peak_mib(device, [&] { y = block(x, weight); });
  const double difference = amax(abs(y - plain), {0, 1}).item<double>();
  std::printf("%.0f MiB out of place, %.0f MiB in place, largest difference %.1e\n", out_of_place,
              in_place, difference);

  // The gradient of the scores in the place of the probabilities: (dP - sum(P dP)) P, dP = dO V'.
  Tensor p = softmax(matmul(y, y.mT()) * scale(features));
  softmax_backward_(p, ones_like(y), y);
  const double sum_of_a_row = abs(p.sum({-1})).mean().item<double>();  // 0 by the formula
  return difference < 1e-3 && sum_of_a_row < 1e-3 ? 0 : 1;
}
