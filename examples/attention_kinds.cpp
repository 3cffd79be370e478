// Encoders that differ in the name of their attention only, as with the builders of
// fast-transformers: TransformerEncoderBuilder.from_kwargs(n_layers=2, n_heads=4,
// query_dimensions=16, value_dimensions=16, feed_forward_dimensions=128, attention_type=...).get().
// Each learns to tell how often a sequence holds its first token.
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

struct Counter : nn::Module {
  Counter(int64_t vocab, int64_t length, const std::string& attention)
      : encoder(register_module<nn::TransformerEncoder>(
            "encoder", nn::TransformerOptions{.dim = 64,
                                              .heads = 4,
                                              .layers = 2,
                                              .mlp_dim = 128,
                                              .dropout = 0,
                                              .norm_placement = nn::NormPlacement::before,
                                              .final_norm = true,
                                              .attention = attention})),
        tokens(register_module<nn::Embedding>("tokens", vocab, 64)),
        positions(register_module<nn::Embedding>("positions", length, 64)),
        head(register_module<nn::Linear>("head", 64, length + 1)) {}

  Tensor forward(const Tensor& x) override {
    return head(encoder(tokens(x) + positions.weight).select(1, 0));
  }

  nn::TransformerEncoder& encoder;
  nn::Embedding& tokens;
  nn::Embedding& positions;
  nn::Linear& head;
};

int main() {
  const int64_t vocab = 4, length = 32, batch = 16;
  bool all_learn = true;
  for (const char* attention : {"full", "local:9", "linear", "clustered:8,bits=16,iterations=5",
                                "improved_clustered:8,top_k=8", "top_k:8"}) {
    manual_seed(1);
    Counter model(vocab, length, attention);
    optim::AdamW optimizer(model.parameters(), {.lr = 2e-3});
    double first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
      const Tensor x = randint(0, vocab, {batch, length});
      const Tensor count = eq(x, x.narrow(1, 0, 1)).to(DType::int64).sum({1});
      const Tensor loss = cross_entropy(model(x), count);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      if (step < 5) first += loss.item<double>() / 5;
      if (step >= 35) last += loss.item<double>() / 5;
    }
    std::printf("%-34s loss %.2f, then %.2f\n", attention, first, last);
    all_learn = all_learn && last < first;
  }
  return all_learn ? 0 : 1;
}
