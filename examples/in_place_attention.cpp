#include <cmath>
#include <cstdio>

#include <sash/core/backend/backend.h>
#include <sash/sash.h>

using namespace sash;

// A block of a transformer at inference, each step in the place of the one before: no second
// buffer of the size of the scores, nor of the features.
int main() {
  const NoGradGuard no_grad;
  const Device device = Device::parse("auto");
  const int64_t tokens = 1024, features = 256;
  const TensorOptions options{.device = device};
  const Tensor x = randn({tokens, features}, options);
  const double scale = 1 / std::sqrt(static_cast<double>(features));
  const Tensor weight = randn({features, features}, options) * scale;

  const Tensor plain = layer_norm(matmul(softmax(matmul(x, x.mT()) * scale), matmul(x, weight)),
                                  {features}, {}, {}, 1e-6);

  synchronize(device);
  backend(device.type).reset_peak(device);
  const int64_t before = memory_stats(device).current;

  Tensor scores = matmul(x, x.mT());
  softmax_(scores.mul_(scale));
  matmul_(x, weight);  // x <- x W; x <- x W' is matmul_(x, weight.mT())
  Tensor y = matmul(scores, x);
  layer_norm_(y, {features}, {}, {}, 1e-6);

  // The gradient of the scores replaces the probabilities.
  const Tensor d_out = ones_like(y);
  softmax_backward_(scores, d_out, x);

  synchronize(device);
  const double difference = amax(abs(y - plain), {0, 1}).item<double>();
  std::printf(
      "largest difference from the plain ops %.1e, at most %.1f MiB for scores of %.1f MiB\n",
      difference, static_cast<double>(memory_stats(device).peak - before) / (1 << 20),
      static_cast<double>(tokens * tokens) * sizeof(float) / (1 << 20));
  return difference < 1e-3 ? 0 : 1;
}
