// A diffusion model (Ho et al., 2020) draws points of a spiral.
#include <cmath>
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

constexpr int64_t kSteps = 100;

struct Denoiser : nn::Module {
  nn::Embedding& time = register_module<nn::Embedding>("time", kSteps, 64);
  nn::Linear& in = register_module<nn::Linear>("in", 2, 64);
  nn::Sequential& net =
      register_module<nn::Sequential>("net", nn::SiLU(), nn::Linear(64, 64), nn::SiLU(),
                                      nn::Linear(64, 64), nn::SiLU(), nn::Linear(64, 2));

  using nn::Module::forward;
  Tensor forward(const Tensor& x, const Tensor& t) { return net(in(x) + time(t)); }
};

Tensor spiral(int64_t count) {
  const Tensor angle = 3 * M_PI * sqrt(rand({count}));
  return stack({angle * cos(angle), angle * sin(angle)}, 1) / 5;
}

// The mean distance to the nearest of many points of the spiral.
double distance(const Tensor& x) {
  const Tensor difference = x.unsqueeze(1) - spiral(2000);
  return sqrt(difference.square().sum({2})).amin({1}).mean().item<double>();
}

int main() {
  manual_seed(1);
  Denoiser model;
  optim::AdamW optimizer(model.parameters(), {.lr = 2e-3});
  const Tensor beta = linspace(1e-4, 0.05, kSteps), kept = cumsum(log(1 - beta), 0).exp();
  for (int step = 0; step < 1500; ++step) {
    const Tensor x = spiral(256), noise = randn({256, 2}), t = randint(0, kSteps, {256});
    const Tensor share = kept[t].unsqueeze(1);
    optimizer.zero_grad();
    mse_loss(model.forward(sqrt(share) * x + sqrt(1 - share) * noise, t), noise).backward();
    optimizer.step();
  }
  const NoGradGuard no_grad;
  Tensor x = randn({500, 2});
  std::printf("distance of noise %.3f", distance(x));
  for (int64_t t = kSteps - 1; t >= 0; --t) {
    const Tensor noise = model.forward(x, full({500}, t, {.dtype = DType::int64}));
    x = (x - beta[t] / sqrt(1 - kept[t]) * noise) / sqrt(1 - beta[t]);
    if (t > 0) x = x + sqrt(beta[t]) * randn({500, 2});
  }
  std::printf(", of the model's points %.3f\n", distance(x));
}
