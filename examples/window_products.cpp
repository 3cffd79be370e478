// A net of three layers of windowed products, for users of window_matmul: each layer computes the
// scores of 2 w + 1 neighbours, their softmax, and the weighted sum. It learns to move a sequence
// by two tokens.
#include <cmath>
#include <cstdio>
#include <limits>

#include <sash/sash.h>

using namespace sash;

namespace {

constexpr int64_t kTokens = 64, kFeatures = 8, kWindow = 2;

class WindowLayer : public nn::Module {
 public:
  WindowLayer()
      : query(register_module<nn::Linear>("query", 2 * kFeatures, kFeatures)),
        key(register_module<nn::Linear>("key", 2 * kFeatures, kFeatures)),
        value(register_module<nn::Linear>("value", 2 * kFeatures, 2 * kFeatures)) {}

  Tensor forward(const Tensor& x) override {
    const Tensor q = query(x) * (1 / std::sqrt(double{kFeatures}));
    // Slot j of token i is token i + j - w. Slots outside the sequence get -inf, hence no weight.
    const Tensor scores =
        window_matmul(q, key(x).mT(), kWindow, {.fill = -std::numeric_limits<double>::infinity()});
    return x + unwindow_matmul(softmax(scores), value(x), kWindow);
  }

  nn::Linear &query, &key, &value;
};

}  // namespace

int main() {
  manual_seed(1);
  nn::Sequential net(WindowLayer(), WindowLayer(), WindowLayer(),
                     nn::Linear(2 * kFeatures, kFeatures));

  // Waves that tell where a token stands, as further features.
  const Tensor phase = arange(0, kTokens).to(DType::float32).unsqueeze(1) * 0.7;
  const Tensor rates = arange(1, kFeatures / 2 + 1).to(DType::float32).unsqueeze(0) * 0.45;
  const Tensor place = cat({sin(phase * rates), cos(phase * rates)}, 1);

  optim::AdamW optimizer(net.parameters(), {.lr = 3e-3});
  double first = 0, loss = 0;
  for (int step = 0; step < 150; ++step) {
    const Tensor tokens = randn({8, kTokens, kFeatures});
    const Tensor x = cat({tokens, place.expand({8, kTokens, kFeatures})}, 2);
    // Token i should become token i - 2; the first two have none.
    const Tensor y = net(x).narrow(1, 2, kTokens - 2);
    const Tensor error = mse_loss(y, tokens.narrow(1, 0, kTokens - 2));
    optimizer.zero_grad();
    error.backward();
    optimizer.step();
    loss = error.item<double>();
    if (step == 0) first = loss;
    if (step % 50 == 49) std::printf("step %3d: loss %.4f\n", step + 1, loss);
  }
  std::printf("from %.3f to %.3f\n", first, loss);
  return loss < 0.6 * first ? 0 : 1;
}
