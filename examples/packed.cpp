// Classifies texts of 50 to 1,000 letters that are packed one after the other, without padding: a
// token sees only its own text. The class is the letter that a text prefers. After 100 steps nearly
// all new texts are right.
#include <cstdio>

#include <sash/sash.h>

#include "support/flags.h"

using namespace sash;

namespace {

constexpr int64_t kLetters = 16;
constexpr int64_t kClass = kLetters;  // the token before each text, whose state gives the answer

// `count` texts, of which every fifth letter or more is the label.
nn::data::SequenceDataset texts(int64_t count, uint64_t seed) {
  Generator generator(seed);
  const auto draw = [&](int64_t low, int64_t high, int64_t n) {
    return randint(low, high, {n}, generator, {.device = kCPU}).to_vector<int64_t>();
  };
  const std::vector<int64_t> labels = draw(0, kLetters, count), lengths = draw(50, 1000, count);
  std::vector<std::vector<int64_t>> all;
  for (size_t i = 0; i < labels.size(); ++i) {
    std::vector<int64_t> text = draw(0, kLetters, lengths[i]);
    for (size_t j = 0; j < text.size(); j += 5) text[j] = labels[i];
    text.insert(text.begin(), kClass);
    all.push_back(text);
  }
  return nn::data::SequenceDataset(all,
                                   {.form = nn::data::SequenceBatch::packed, .labels = labels});
}

struct Classifier : nn::ModuleOf<Classifier> {
  nn::Encoder& encoder = register_module<nn::Encoder>(
      "encoder", nn::TransformerConfig{
                     .vocab = kLetters + 1, .dim = 32, .layers = 2, .head = nn::HeadKind::none});
  nn::Linear& head = register_module<nn::Linear>("head", 32, kLetters);

  // Logits [B, letters] of tokens [1, N] with cu_seqlens [B + 1].
  Tensor forward(const Tensor& tokens, const Tensor& cu_seqlens) {
    const Tensor states = encoder(tokens, AttentionMask::packed(cu_seqlens));
    return head(index_select(states[0], 0, cu_seqlens.slice(0, 0, -1).to(DType::int64)));
  }
};

}  // namespace

int main(int argc, char** argv) {
  int steps = 100, batch = 16, tests = 200;
  double least = 0;
  Flags flags("Trains a classifier of packed texts.");
  flags.add_size("--steps", steps);
  flags.add_size("--batch", batch, "Texts of a step");
  flags.add_size("--tests", tests, "Texts of the test");
  flags.add("--least", least, "Percent to get right, below which the run fails");
  return flags.run(argc, argv, [&] {
    nn::data::Loader loader(texts(steps * batch, 1), {.batch = batch}),
        test(texts(tests, 2), {.batch = 20});
    Classifier model;
    optim::AdamW optimizer(model.parameters(), {.lr = 2e-3, .max_grad_norm = 1});
    int step = 0;
    for (const nn::data::Batch& b : loader) {
      const Tensor loss = cross_entropy(model(b[0], b[2]), b[1]);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      if (++step % 10 == 0) std::printf("step %4d  loss %.4f\n", step, loss.item<double>());
    }

    const NoGradGuard no_grad;
    double right = 0;
    for (const nn::data::Batch& b : test) {
      right += eq(argmax(model(b[0], b[2])), b[1]).to(DType::float32).sum().item<double>();
    }
    const double percent = 100 * right / tests;
    std::printf("%.1f %% of %d new texts right\n", percent, tests);
    return percent >= least ? 0 : 1;
  });
}
