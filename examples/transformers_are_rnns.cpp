// Causal linear attention for users of fast-transformers: a small model is trained on whole
// sequences at once, and then writes a sequence token by token as an RNN whose state keeps its
// size. A sequence counts in steps of its own, modulo 11; the model finds out the step from the
// start.
#include <cmath>
#include <cstdio>

#include <sash/sash.h>

using namespace sash;

namespace {

constexpr int64_t kClasses = 11, kTokens = 24, kPrompt = 4, kBatch = 32;
constexpr int64_t kFeatures = 32, kHeads = 4;

class Layer : public nn::Module {
 public:
  /// x [B, n, kFeatures]: whole sequences, or with a state the next n tokens of them.
  Tensor run(const Tensor& x, LinearAttentionState* state) {
    const auto heads = [&](nn::Linear& projection) {
      return projection(norm1(x))
          .reshape({x.size(0), x.size(1), kHeads, kFeatures / kHeads})
          .transpose(1, 2);
    };
    const Tensor q = heads(query), k = heads(key), v = heads(value);
    const Tensor o = state ? linear_attention_step(q, k, v, *state)
                           : linear_attention(q, k, v, {.causal = true});
    const Tensor y = x + out(o.transpose(1, 2).reshape(x.shape()));
    return y + linear2(gelu(linear1(norm2(y))));
  }

 private:
  nn::LayerNorm& norm1 = register_module<nn::LayerNorm>("norm1", kFeatures);
  nn::Linear& query = register_module<nn::Linear>("query", kFeatures, kFeatures);
  nn::Linear& key = register_module<nn::Linear>("key", kFeatures, kFeatures);
  nn::Linear& value = register_module<nn::Linear>("value", kFeatures, kFeatures);
  nn::Linear& out = register_module<nn::Linear>("out", kFeatures, kFeatures);
  nn::LayerNorm& norm2 = register_module<nn::LayerNorm>("norm2", kFeatures);
  nn::Linear& linear1 = register_module<nn::Linear>("linear1", kFeatures, 4 * kFeatures);
  nn::Linear& linear2 = register_module<nn::Linear>("linear2", 4 * kFeatures, kFeatures);
};

class Model : public nn::Module {
 public:
  /// The logits of the tokens after `tokens` [B, n], which stand from `place` on.
  Tensor run(const Tensor& tokens, int64_t place, std::vector<LinearAttentionState>* states) {
    Tensor x = token(tokens) + position(arange(place, place + tokens.size(1)));
    x = first.run(x, states ? &(*states)[0] : nullptr);
    x = second.run(x, states ? &(*states)[1] : nullptr);
    return head(x);
  }

 private:
  nn::Embedding& token = register_module<nn::Embedding>("token", kClasses, kFeatures);
  nn::Embedding& position = register_module<nn::Embedding>("position", kTokens, kFeatures);
  Layer& first = register_module<Layer>("first");
  Layer& second = register_module<Layer>("second");
  nn::Linear& head = register_module<nn::Linear>("head", kFeatures, kClasses);
};

// Rows start + step i modulo 11, int64 [count, kTokens].
Tensor sequences(int64_t count) {
  std::vector<int64_t> tokens;
  const std::vector<int64_t> steps = randint(1, 6, {count}).to_vector<int64_t>();
  for (const int64_t step : steps) {
    for (int64_t i = 0; i < kTokens; ++i) tokens.push_back(step * i % kClasses);
  }
  return tensor(tokens, {count, kTokens});
}

}  // namespace

int main() {
  manual_seed(1);
  Model model;
  optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  for (int step = 0; step < 80; ++step) {
    const Tensor tokens = sequences(kBatch);
    const Tensor logits = model.run(tokens.narrow(1, 0, kTokens - 1), 0, nullptr);
    const Tensor next = tokens.narrow(1, 1, kTokens - 1);
    const Tensor loss = cross_entropy(logits.reshape({-1, kClasses}), next.reshape({-1}));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 40 == 39) std::printf("step %3d: loss %.4f\n", step + 1, loss.item<double>());
  }

  // The prompt at once, then one token at a time.
  const NoGradGuard no_grad;
  const Tensor wanted = sequences(8);
  std::vector<LinearAttentionState> states(2);
  std::vector<Tensor> parts{wanted.narrow(1, 0, kPrompt)};
  for (int64_t place = 0; place < kTokens - 1;) {
    const int64_t count = parts.back().size(1);
    const Tensor logits = model.run(parts.back(), place, &states);
    place += count;
    parts.push_back(argmax(logits.narrow(1, count - 1, 1), -1));
  }
  const Tensor written = cat(parts, 1);
  for (const int64_t token : written.select(0, 0).to_vector<int64_t>()) {
    std::printf("%ld ", static_cast<long>(token));
  }
  const double right = mean(eq(written, wanted).to(DType::float32)).item<double>();
  std::printf("\n%.1f %% of the tokens are right; the state has %ld numbers a layer\n", 100 * right,
              static_cast<long>(states[0].s.numel() + states[0].z.numel()));
  return right > 0.9 ? 0 : 1;
}
