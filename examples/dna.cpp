// Marks the genes in 16,384 bases of made-up DNA: what lies between TATAAT and a TTATTA at most 120
// bases after it. Half of all such words have no partner. A window of 128 bases to either side
// shows all that decides; its cost grows with the length, not with the square. Tokens are six bases
// long, one for each base (as in DNABERT: Ji et al., 2021).
#include <algorithm>
#include <cstdio>
#include <string>

#include <sash/core/philox.h>
#include <sash/sash.h>

#include "support/flags.h"

using namespace sash;

namespace {

constexpr int64_t kMotif = 6;                   // bases of a motif, and of a token
constexpr int64_t kTokens = 1 << (2 * kMotif);  // 4 to the sixth

// Sequence i of a genome: tokens [length], and for each whether its first base is of a gene,
// 1 or 0.
class Genome : public nn::data::Dataset {
 public:
  Genome(uint64_t seed, int64_t count, int64_t length)
      : seed_(seed), count_(count), length_(length) {}

  int64_t size() const override { return count_; }
  nn::data::Batch get(int64_t index) const override {
    uint64_t counter = static_cast<uint64_t>(index) << 32;
    const auto draw = [&](int64_t n) { return int64_t{philox(seed_, counter++).lane[0]} % n; };
    std::vector<int64_t> bases, labels(static_cast<size_t>(length_), 0);
    for (int64_t i = 0; i < length_ + kMotif - 1; ++i) bases.push_back(draw(4));
    for (int64_t at = draw(100); at + 150 < length_; at += 150 + draw(100)) {
      const int64_t end = at + 20 + draw(100), kind = draw(4);
      if (kind != 0) write(bases, at, "TATAAT");
      if (kind != 1) write(bases, end, "TTATTA");
      if (kind > 1) std::fill(labels.begin() + at, labels.begin() + end, 1);
    }
    std::vector<int64_t> tokens(labels.size(), 0);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (size_t j = 0; j < kMotif; ++j) tokens[i] = 4 * tokens[i] + bases[i + j];
    }
    return {tensor(tokens, {length_}, {.device = kCPU}),
            tensor(labels, {length_}, {.device = kCPU})};
  }

 private:
  static void write(std::vector<int64_t>& bases, int64_t at, const std::string& motif) {
    for (const char c : motif) {
      bases[static_cast<size_t>(at++)] = static_cast<int64_t>(std::string("ACGT").find(c));
    }
  }

  uint64_t seed_;
  int64_t count_, length_;
};

// Logits [B, S, 2] of tokens [B, S].
struct Tagger : nn::Module {
  explicit Tagger(const AttentionMask& mask)
      : encoder(register_module<nn::Encoder>(
            "encoder", nn::TransformerConfig{.vocab = kTokens,
                                             .dim = 64,
                                             .heads = 4,
                                             .layers = 2,
                                             .attention = {{mask, nn::RotaryOptions{}}},
                                             .head = nn::HeadKind::none})),
        head(register_module<nn::Linear>("head", 64, 2)) {}
  Tensor forward(const Tensor& tokens) override { return head(encoder(tokens)); }

  nn::Encoder& encoder;
  nn::Linear& head;
};

// The harmonic mean of precision and recall of the marked bases.
double f1(Tagger& model, nn::data::Loader& loader) {
  const NoGradGuard no_grad;
  double both = 0, marked_or_real = 0;
  for (const nn::data::Batch& batch : loader) {
    const Tensor marked = argmax(model(batch[0]));
    both += (marked * batch[1]).sum().item<double>();
    marked_or_real += (marked + batch[1]).sum().item<double>();
  }
  return 2 * both / marked_or_real;
}

}  // namespace

int main(int argc, char** argv) {
  std::string attention = "symmetric_window:128";
  int steps = 200, length = 16384;
  double least = 0;
  Flags flags("Trains an encoder with windows to mark the genes of long DNA.");
  flags.add_size("--steps", steps, "Each on one sequence");
  flags.add_size("--length", length, "Bases of a sequence");
  flags.add("--attention", attention, "The mask of each layer");
  flags.add("--least", least, "F1 to reach, below which the run fails");
  return flags.run(argc, argv, [&] {
    nn::data::Loader loader(Genome(1, steps, length), {.workers = 1});
    nn::data::Loader test(Genome(2, 4, length));
    Tagger model(AttentionMask::parse(attention));
    optim::AdamW optimizer(model.parameters(), {.max_grad_norm = 1});
    const optim::WarmupCosine schedule{.lr = 5e-3, .warmup = std::min(10, steps), .total = steps};
    int step = 0;
    for (const nn::data::Batch& batch : loader) {
      optimizer.set_lr(schedule(step++));
      const Tensor loss = cross_entropy(model(batch[0]), batch[1]);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      if (step % 10 == 0) std::printf("step %4d  loss %.4f\n", step, loss.item<double>());
    }
    const double found = f1(model, test);
    std::printf("F1 %.3f over 4 new sequences of %lld bases\n", found,
                static_cast<long long>(length));
    return found >= least ? 0 : 1;
  });
}
