// An encoder-decoder learns to write a sequence of digits backwards.
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

constexpr int64_t kStart = 10, kLength = 12;

// The start token, then all of y but its last token.
Tensor shifted(const Tensor& y) {
  return cat({full({y.size(0), 1}, kStart, {.dtype = DType::int64}), y.slice(1, 0, -1)}, 1);
}

Tensor translate(nn::Transformer& model, const Tensor& x) {
  const NoGradGuard no_grad;
  nn::TransformerCache cache = model.new_cache(x);
  std::vector<Tensor> written{full({x.size(0), 1}, kStart, {.dtype = DType::int64})};
  for (int64_t i = 0; i < kLength; ++i) written.push_back(argmax(model(written.back(), cache)));
  return cat(written, 1).slice(1, 1, {});
}

int main() {
  manual_seed(1);
  const nn::TransformerConfig config{.vocab = 11, .dim = 64, .layers = 2, .max_positions = kLength};
  nn::Transformer model(config, config);
  optim::AdamW optimizer(model.parameters(), {.lr = 2e-3});
  for (int step = 0; step < 300; ++step) {
    const Tensor x = randint(0, 10, {64, kLength}), y = flip(x, {1});
    optimizer.zero_grad();
    model.loss(x, shifted(y), y).backward();
    optimizer.step();
  }
  const Tensor x = randint(0, 10, {500, kLength});
  const Tensor right = all(translate(model, x) == flip(x, {1}), {1});
  std::printf("%.1f %% of new sequences\n", 100 * right.to(DType::float32).mean().item<double>());
}
