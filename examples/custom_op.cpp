// A custom differentiable op: the linear recurrence of state-space layers,
//
//     y_t = a_t y_(t-1) + x_t,   y_(-1) = 0,   for a and x of shape [T, C].
//
// Built-in ops cannot compute it in one pass. The forward pass is a plain C++ loop. The backward
// pass is written in ops, so it can be differentiated again.
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

enum class Direction { forward, backward };

// forward: y_t = a_t y_(t-1) + x_t; backward: y_t = a_t y_(t+1) + x_t, from the last t down.
Tensor recurrence(const Tensor& a, const Tensor& x, Direction direction) {
  if (a.shape() != x.shape() || x.rank() != 2) {
    throw ShapeError("recurrence", "a and x of one shape [T, C]",
                     to_string(a.shape()) + " and " + to_string(x.shape()));
  }
  const Tensor coefficients = a.detach().contiguous(), inputs = x.detach().contiguous();
  const Tensor y = empty_like(inputs);
  const int64_t steps = x.size(0), channels = x.size(1);
  const double *at = coefficients.data<const double>(), *xt = inputs.data<const double>();
  double* yt = y.data<double>();
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = direction == Direction::forward ? i : steps - 1 - i;
    const int64_t before = direction == Direction::forward ? t - 1 : t + 1;
    for (int64_t c = 0; c < channels; ++c) {
      const double carried = i > 0 ? yt[before * channels + c] : 0;
      yt[t * channels + c] = at[t * channels + c] * carried + xt[t * channels + c];
    }
  }
  // With g the gradient of y: dx_t = g_t + a_(t+1) dx_(t+1), the same recurrence in the other
  // direction, and da_t = dx_t y_(t-1).
  return record("recurrence", {a, x}, y,
                [a = save(a), y = save_output(y), direction](Backward& pass, const Tensor& g) {
                  const bool ahead = direction == Direction::forward;
                  const Tensor none = zeros({1, g.size(1)}, g.options());
                  const auto shifted = [&](const Tensor& v, bool up) {
                    return up ? cat({none, v.narrow(0, 0, v.size(0) - 1)}, 0)
                              : cat({v.narrow(0, 1, v.size(0) - 1), none}, 0);
                  };
                  const Tensor dx = recurrence(shifted(pass(a), !ahead), g,
                                               ahead ? Direction::backward : Direction::forward);
                  return Gradients{dx * shifted(pass(y), ahead), dx};
                });
}

int main() {
  const TensorOptions variable{.dtype = DType::float64, .device = kCPU, .requires_grad = true};
  const auto forward = [](const std::vector<Tensor>& in) {
    return recurrence(in[0], in[1], Direction::forward);
  };
  const std::vector<Tensor> inputs{rand({7, 3}, variable), randn({7, 3}, variable)};
  const GradcheckReport first = gradcheck(forward, inputs);
  const GradcheckReport second = gradgradcheck(forward, inputs);
  std::printf("first derivative:  %s\nsecond derivative: %s\n", first.message().c_str(),
              second.message().c_str());
  return first.ok && second.ok ? 0 : 1;
}
