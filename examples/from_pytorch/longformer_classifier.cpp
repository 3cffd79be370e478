// A classifier of 512 tokens: windows of 32 tokens to either side, and a class token that sees
// all. It tells which of two rare tokens comes more often.
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

constexpr int64_t kLength = 512, kVocab = 32, kDim = 64;

struct Layer : nn::Module {
  nn::LayerNorm& norm1 = register_module<nn::LayerNorm>("norm1", kDim);
  nn::LongformerAttention& attention = register_module<nn::LongformerAttention>(
      "attention", kDim, 4, nn::LongformerOptions{.window = 32, .global_projections = false});
  nn::LayerNorm& norm2 = register_module<nn::LayerNorm>("norm2", kDim);
  nn::Linear& up = register_module<nn::Linear>("up", kDim, 2 * kDim);
  nn::Linear& down = register_module<nn::Linear>("down", 2 * kDim, kDim);

  Tensor forward(const Tensor& x) override {
    const Tensor h = x + attention(norm1(x));
    return h + down(gelu(up(norm2(h))));
  }
};

struct Classifier : nn::Module {
  nn::Embedding& tokens = register_module<nn::Embedding>("tokens", kVocab, kDim);
  nn::Sequential& layers = register_module<nn::Sequential>("layers", Layer(), Layer());
  nn::Linear& head = register_module<nn::Linear>("head", kDim, 2);

  Tensor forward(const Tensor& x) override { return head(layers(tokens(x)).select(1, 0)); }
};

// Token 0 is the class token; tokens 1 and 2 are rare.
std::pair<Tensor, Tensor> samples(int64_t count) {
  const Tensor x = randint(3, kVocab, {count, kLength});
  const Tensor rare = rand({count, kLength}), often = rand({count, 1}) < 0.5;
  const Tensor one = rare<where(often, 0.03, 0.01), two = rare> where(often, 0.99, 0.97);
  const Tensor mixed = masked_fill(masked_fill(x, one, 1), two, 2);
  const Tensor label = (one.sum({1}) > two.sum({1})).to(DType::int64);
  return {cat({zeros({count, 1}, {.dtype = DType::int64}), mixed.slice(1, 1, {})}, 1), label};
}

int main() {
  manual_seed(1);
  Classifier model;
  optim::AdamW optimizer(model.parameters(), {.lr = 2e-3});
  for (int step = 0; step < 100; ++step) {
    const auto [x, y] = samples(16);
    optimizer.zero_grad();
    cross_entropy(model(x), y).backward();
    optimizer.step();
  }
  const NoGradGuard no_grad;
  const auto [x, y] = samples(200);
  const Tensor right = argmax(model(x)) == y;
  std::printf("%.1f %% of new sequences\n", 100 * right.to(DType::float32).mean().item<double>());
}
