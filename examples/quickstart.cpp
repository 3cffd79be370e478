#include <cstdio>

#include <sash/sash.h>

using namespace sash;

struct MLP : nn::Module {
  nn::Linear& fc1 = register_module<nn::Linear>("fc1", 1, 32);
  nn::Linear& fc2 = register_module<nn::Linear>("fc2", 32, 1);
  Tensor forward(const Tensor& x) override { return fc2(tanh(fc1(x))); }
};

int main() {
  set_default_device("auto");  // or "cpu", "cuda"
  MLP model;
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  for (int step = 0; step <= 500; ++step) {
    const Tensor x = 6.0 * rand({64, 1}) - 3.0;
    const Tensor loss = mse_loss(model(x), sin(x));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 100 == 0) std::printf("step %3d  loss %.5f\n", step, loss.item<double>());
  }
}
