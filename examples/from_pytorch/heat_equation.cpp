// A physics-informed net (Raissi et al., 2019) solves the heat equation u_t = u_xx / 10 on [0, 1]
// with u(0, x) = sin(pi x) and u = 0 at both ends: second derivatives are part of the loss.
#include <cmath>
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

Tensor derivative(const Tensor& y, const Tensor& x) {
  return grad({y.sum()}, {x}, {}, {.create_graph = true})[0];
}

int main() {
  manual_seed(1);
  nn::Sequential net(nn::Linear(2, 32), nn::Tanh(), nn::Linear(32, 32), nn::Tanh(),
                     nn::Linear(32, 1));
  const auto u = [&](const Tensor& t, const Tensor& x) { return net(cat({t, x}, 1)); };
  optim::Adam optimizer(net.parameters(), {.lr = 3e-3});
  for (int step = 0; step < 1500; ++step) {
    const Tensor t = rand({128, 1}).requires_grad_(), x = rand({128, 1}).requires_grad_();
    const Tensor y = u(t, x), u_xx = derivative(derivative(y, x), x);
    const Tensor start = rand({64, 1}), none = zeros({64, 1});
    const Tensor loss = (derivative(y, t) - 0.1 * u_xx).square().mean() +
                        mse_loss(u(none, start), sin(M_PI * start)) +
                        u(start, none).square().mean() + u(start, none + 1).square().mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  const NoGradGuard no_grad;
  const Tensor t = rand({1000, 1}), x = rand({1000, 1});
  const Tensor exact = exp(-0.1 * M_PI * M_PI * t) * sin(M_PI * x);
  std::printf("largest error %.4f\n", (u(t, x) - exact).abs().max().item<double>());
}
