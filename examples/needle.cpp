// Needle in a haystack: a long sequence starts with a code of 8 digits and ends with 64 questions,
// each asking for one digit of the code. One layer of windowed attention cannot connect the two;
// with the code's tokens global it can. The cost of both grows linearly with the length.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <sash/core/philox.h>
#include <sash/sash.h>
#include <CLI/CLI.hpp>

#include "support/program.h"

using namespace sash;

namespace {

constexpr int64_t kDigits = 10, kLetters = 16;  // distinct tokens of code and haystack
constexpr int64_t kCode = 8, kQuestions = 64;   // tokens at the start, at the end
constexpr int64_t kFirstLetter = kDigits, kFirstQuestion = kDigits + kLetters;
constexpr int64_t kVocabulary = kFirstQuestion + kCode;  // question n asks for digit n
constexpr const char* kWindow = "symmetric_window:64";
constexpr const char* kWindowAndGlobal = "symmetric_window:64 | global:0,1,2,3,4,5,6,7";

struct Settings {
  std::string attention;  // empty: kWindow, then kWindowAndGlobal
  std::string device = "auto";
  int64_t length = 4096, steps = 200, batch = 4;
  uint64_t seed = 1;
};

struct Batch {
  Tensor tokens;   // [B, T]
  Tensor answers;  // [B, questions], digits
};

// Sequences first, first + 1, ..., first + count - 1 of the data set given by `seed`.
Batch make_batch(const Settings& settings, uint64_t seed, int64_t first, int64_t count) {
  std::vector<int64_t> tokens, answers;
  for (int64_t n = first; n < first + count; ++n) {
    const auto start = static_cast<int64_t>(tokens.size());
    for (int64_t t = 0; t < settings.length; ++t) {
      const int64_t draw = philox(seed, static_cast<uint64_t>(n * settings.length + t)).lane[0];
      if (t < kCode) {
        tokens.push_back(draw % kDigits);
      } else if (t < settings.length - kQuestions) {
        tokens.push_back(kFirstLetter + draw % kLetters);
      } else {
        tokens.push_back(kFirstQuestion + draw % kCode);
        answers.push_back(tokens[static_cast<size_t>(start + draw % kCode)]);
      }
    }
  }
  return {tensor(tokens, {count, settings.length}), tensor(answers, {count, kQuestions})};
}

// One layer of attention, then a linear head that predicts a digit for each question.
struct Reader : nn::Module {
  static constexpr int64_t kDim = 32;

  Reader(int64_t length, const std::string& attention)
      : tokens(register_module<nn::Embedding>("tokens", kVocabulary, kDim)),
        positions(register_module<nn::Embedding>("positions", length, kDim)),
        encoder(register_module<nn::TransformerEncoder>(
            "encoder", nn::TransformerOptions{.dim = kDim,
                                              .heads = 2,
                                              .layers = 1,
                                              .dropout = 0,
                                              .norm_placement = nn::NormPlacement::before,
                                              .final_norm = true,
                                              .attention = attention})),
        head(register_module<nn::Linear>("head", kDim, kDigits)) {
    nn::init::normal_(tokens.weight, 0, 0.1);
    nn::init::normal_(positions.weight, 0, 0.1);
  }
  // Logits [B, questions, digits].
  Tensor forward(const Tensor& x) override {
    const Tensor y = encoder(tokens(x) + positions.weight);
    return head(y.narrow(1, y.size(1) - kQuestions, kQuestions));
  }

  nn::Embedding& tokens;
  nn::Embedding& positions;
  nn::TransformerEncoder& encoder;
  nn::Linear& head;
};

// Fraction of correct answers on 8 sequences that are not in the training data.
double accuracy(Reader& model, const Settings& settings) {
  const NoGradGuard no_grad;
  const Batch test = make_batch(settings, ~settings.seed, 0, 8);
  const Tensor right = eq(argmax(model(test.tokens)), test.answers);
  return right.to(default_dtype()).mean().item<double>();
}

double train(const std::string& attention, const Settings& settings) {
  manual_seed(settings.seed);
  Reader model(settings.length, attention);
  optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::printf("%s\n", attention.c_str());
  for (int64_t step = 1; step <= settings.steps; ++step) {
    const Batch batch = make_batch(settings, settings.seed, step * settings.batch, settings.batch);
    const Tensor loss = cross_entropy(model(batch.tokens), batch.answers);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 50 == 0 || step == settings.steps) {
      std::printf("  step %4lld  loss %.3f  %.1f s\n", static_cast<long long>(step),
                  loss.item<double>(), seconds());
      std::fflush(stdout);
    }
  }
  return accuracy(model, settings);
}

int run(const Settings& settings) {
  set_default_device(Device::parse(settings.device));
  const std::vector<std::string> all = settings.attention.empty()
                                           ? std::vector<std::string>{kWindow, kWindowAndGlobal}
                                           : std::vector<std::string>{settings.attention};
  std::vector<double> right;
  for (const std::string& attention : all) right.push_back(train(attention, settings));
  std::printf("\nright answers over %lld tokens (chance %.0f %%)\n",
              static_cast<long long>(settings.length), 100.0 / kDigits);
  for (size_t i = 0; i < all.size(); ++i) {
    const MaskStatistics cost =
        mask_statistics(AttentionMask::parse(all[i]), settings.length, settings.length);
    std::printf("  %5.1f %%  %s, %.1f %% of dense attention's work\n", 100 * right[i],
                all[i].c_str(), 100 * cost.share_of_dense());
  }
  if (all.size() == 1) return 0;
  return right[0] < 0.3 && right[1] > 0.95 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Trains windowed attention with and without global tokens to recall early tokens."};
  app.option_defaults()->always_capture_default();
  const CLI::Range count(int64_t{1},
                         int64_t{1} << 24);  // CLI::PositiveNumber prints the limits of a double
  app.add_option("--attention", settings.attention, "Train with this mask only, for example causal")
      ->default_str("a window, then the same with global tokens");
  app.add_option("--device", settings.device, "auto, cpu, cuda or cuda:<index>");
  app.add_option("--length", settings.length, "Tokens per sequence")
      ->check(CLI::Range(int64_t{2} * (kCode + kQuestions), int64_t{1} << 20));
  app.add_option("--steps", settings.steps, "Training steps")->check(count);
  app.add_option("--batch", settings.batch, "Sequences per step")->check(count);
  app.add_option("--seed", settings.seed, "Seed of weights and data")->check(check_seed);
  return run_program(app, argc, argv, [&] { return run(settings); });
}
