// An actor and a critic learn to balance a pole on a cart (Barto, Sutton and Anderson, 1983).
#include <cmath>
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

struct ActorCritic : nn::Module {
  nn::Linear& hidden = register_module<nn::Linear>("hidden", 4, 64);
  nn::Linear& actor = register_module<nn::Linear>("actor", 64, 2);
  nn::Linear& critic = register_module<nn::Linear>("critic", 64, 1);

  std::pair<Tensor, Tensor> judge(const Tensor& x) {
    const Tensor h = relu(hidden(x));
    return {log_softmax(actor(h)), critic(h).squeeze(-1)};
  }
};

// State [B, 4]: place, speed, angle, its speed. Action [B]: 0 pushes left, 1 right.
Tensor moved(const Tensor& state, const Tensor& action) {
  const Tensor v = state.select(1, 1), a = state.select(1, 2), w = state.select(1, 3);
  const Tensor force = 20 * action.to(DType::float32) - 10;
  const Tensor push = (force + 0.05 * w.square() * sin(a)) / 1.1;
  const Tensor turn =
      (9.8 * sin(a) - cos(a) * push) / (0.5 * (4.0 / 3 - 0.1 / 1.1 * cos(a).square()));
  return state + 0.02 * stack({v, push - 0.05 / 1.1 * turn * cos(a), w, turn}, 1);
}

Tensor fallen(const Tensor& state) {
  return (state.select(1, 0).abs() > 2.4) | (state.select(1, 2).abs() > 0.21);
}

int main() {
  manual_seed(1);
  constexpr int64_t kCarts = 32, kSpan = 16;
  const auto start = [] { return rand({kCarts, 4}) * 0.1 - 0.05; };
  ActorCritic model;
  optim::Adam optimizer(model.parameters(), {.lr = 3e-3});
  Tensor state = start(), falls = zeros({});
  for (int update = 0; update < 400; ++update) {
    std::vector<Tensor> chosen, values, alive;
    for (int64_t i = 0; i < kSpan; ++i) {
      const auto [scores, value] = model.judge(state);
      const Tensor action = (rand({kCarts}) < scores.detach().select(1, 1).exp()).to(DType::int64);
      chosen.push_back(gather(scores, 1, action.unsqueeze(1)).squeeze(1));
      values.push_back(value);
      state = moved(state, action);
      const Tensor down = fallen(state);
      alive.push_back((down == 0).to(DType::float32));
      state = where(down.unsqueeze(1), start(), state);
      if (update >= 350) falls = falls + down.sum();
    }
    Tensor future = model.judge(state).second.detach(), loss = zeros({});
    for (int64_t i = kSpan - 1; i >= 0; --i) {
      future = alive[i] * (1 + 0.98 * future);
      const Tensor advantage = future - values[i];
      loss = loss + (advantage.square() * 0.5 - chosen[i] * advantage.detach()).mean();
    }
    optimizer.zero_grad();
    (loss / double(kSpan)).backward();
    optimizer.step();
  }
  std::printf("%.0f steps without a fall\n", 50.0 * kSpan * kCarts / (1 + falls.item<double>()));
}
