// A decoder forecasts waves with noise, the next value from the 64 before.
#include <cmath>
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

struct Forecaster : nn::Module {
  nn::Linear& in = register_module<nn::Linear>("in", 1, 64);
  nn::TransformerEncoder& layers = register_module<nn::TransformerEncoder>(
      "layers", nn::TransformerOptions{.dim = 64,
                                       .heads = 4,
                                       .layers = 2,
                                       .dropout = 0,
                                       .norm_first = true,
                                       .final_norm = true,
                                       .attention = "causal_window:64"});
  nn::Linear& out = register_module<nn::Linear>("out", 64, 1);
  Tensor positions = register_parameter("positions", randn({256, 64}) * 0.1);

  Tensor forward(const Tensor& x) override {
    return out(layers(in(x.unsqueeze(-1)) + positions)).squeeze(-1);
  }
};

// [count, 257]
Tensor series(int64_t count) {
  const Tensor t = arange(0, 257).to(DType::float32);
  const auto wave = [&] {
    const Tensor speed = rand({count, 1}) * 0.4 + 0.05, start = rand({count, 1}) * 2 * M_PI;
    return sin(speed * t + start);
  };
  return wave() + 0.05 * randn({count, 257});
}

int main() {
  manual_seed(1);
  Forecaster model;
  optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  for (int step = 0; step < 200; ++step) {
    const Tensor x = series(16);
    optimizer.zero_grad();
    mse_loss(model(x.slice(1, 0, -1)), x.slice(1, 1, {})).backward();
    optimizer.step();
  }
  const NoGradGuard no_grad;
  const Tensor x = series(100), now = x.slice(1, 64, -1), next = x.slice(1, 65, {});
  const double error = mse_loss(model(x.slice(1, 0, -1)).slice(1, 64, {}), next).item<double>();
  std::printf("error %.4f, of the last value %.4f\n", error, mse_loss(now, next).item<double>());
}
