// Needle in a haystack: a long text has 8 digits of a code and ends with 32 questions, each for one
// digit. One layer reads the text. Windowed attention cannot connect the two. With the code at the
// start and its tokens global it can. With the digits at random places (--scatter), attention to
// chosen blocks finds them, whether scores of mean keys choose them or an indexer that learns from
// dense attention, and the delta rule keeps them in its state. The cost of all of these grows
// (nearly) linearly with the length; the indexer's lessons grow with its square.
#include <algorithm>
#include <chrono>
#include <cmath>
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
constexpr int64_t kCode = 8, kQuestions = 32;   // tokens of the code, at the end
// Tokens are digits, then letters, then the question. Each has a mark: n + 1 for digit n and the
// question for it, 0 for letters.
constexpr int64_t kQuestion = kDigits + kLetters;
constexpr int64_t kShortest = 2 * (kCode + kQuestions), kTexts = 32;
constexpr double kRate = 4e-3;           // at first; falls to 0
const std::string kIndexer = "indexer";  // a layer of this program
// The first cannot find the code, the others can.
const std::vector<std::string> kAtStart{"symmetric_window:64",
                                        "symmetric_window:64 | global:0,1,2,3,4,5,6,7"};
const std::vector<std::string> kScattered{
    "causal_window:64", "moba:16,top_k=8", "nsa:16,top_k=8,window=64",
    kIndexer,           "gated_delta",     "kda"};

struct Settings {
  std::vector<std::string> attention{};  // empty: kAtStart or kScattered
  std::string device = "auto", figure{};
  int64_t length = 4096, steps = 600, batch = 2;
  uint64_t seed = 1;
  bool scatter = false;
};

struct Batch {
  Tensor tokens;   // [B, T, 2], with their marks
  Tensor answers;  // [B, questions], digits
};

// Texts first, first + 1, ..., first + count - 1 of the data set given by `seed`.
Batch make_batch(const Settings& settings, uint64_t seed, int64_t first, int64_t count,
                 int64_t length) {
  std::vector<int64_t> tokens, answers;
  for (int64_t n = first; n < first + count; ++n) {
    const size_t start = tokens.size();
    const auto draw = [&](int64_t t, int lane) -> int64_t {
      return philox(seed, static_cast<uint64_t>(n * settings.length + t)).lane[lane];
    };
    for (int64_t t = 0; t < length; ++t) {
      const bool asks = t >= length - kQuestions;
      const int64_t asked = draw(t, 0) % kCode;
      tokens.push_back(asks ? kQuestion : kDigits + draw(t, 0) % kLetters);
      tokens.push_back(asks ? asked + 1 : 0);
      if (asks) answers.push_back(draw(asked, 1) % kDigits);
    }
    // Each digit has a stretch of the first half for itself.
    const int64_t stretch = (length - kQuestions) / 2 / kCode;
    for (int64_t i = 0; i < kCode; ++i) {
      const int64_t place = settings.scatter ? i * stretch + draw(i, 2) % stretch : i;
      const size_t at = start + 2 * static_cast<size_t>(place);
      tokens[at] = draw(i, 1) % kDigits;
      tokens[at + 1] = i + 1;
    }
  }
  return {tensor(tokens, {count, length, 2}), tensor(answers, {count, kQuestions})};
}

constexpr int64_t kDim = 64, kHeads = 4;

// A layer whose attention is dense, and teaches an indexer, or sees the blocks that it chooses.
struct IndexedLayer : nn::Module {
  static constexpr int64_t kBlock = 16;

  IndexedLayer()
      : indexer(register_module<nn::BlockIndexer>(
            "indexer", kDim, nn::BlockIndexerOptions{.block = kBlock, .top_k = 8})),
        norm_(register_module<nn::LayerNorm>("norm", kDim)),
        qkv_(register_module<nn::Linear>("qkv", kDim, 3 * kDim)),
        out_(register_module<nn::Linear>("out", kDim, kDim)),
        mlp_(register_module<nn::Sequential>("mlp", nn::LayerNorm(kDim), nn::Linear(kDim, 2 * kDim),
                                             nn::GELU(), nn::Linear(2 * kDim, kDim))),
        last_norm_(register_module<nn::LayerNorm>("last_norm", kDim)) {}

  Tensor forward(const Tensor& x) override {
    const Tensor y = norm_(x);
    const std::vector<Tensor> parts = split(qkv_(y), kDim, 2);
    const Tensor q = split_heads(parts[0], kHeads), k = split_heads(parts[1], kHeads),
                 v = split_heads(parts[2], kHeads);
    AttentionMask mask = AttentionMask::causal();
    if (learns) {
      lesson = indexer.loss(y, q, k);
    } else {
      mask = mask & AttentionMask::selected(indexer.select(y), kBlock);
    }
    const Tensor attended = x + out_(merge_heads(attention(q, k, v, {.mask = mask})));
    return last_norm_(attended + mlp_(attended));
  }

  nn::BlockIndexer& indexer;
  bool learns = false;
  Tensor lesson;  // the loss of the indexer in the last call that learnt

 private:
  nn::LayerNorm& norm_;
  nn::Linear &qkv_, &out_;
  nn::Sequential& mlp_;
  nn::LayerNorm& last_norm_;
};

// One layer, then a linear head that predicts a digit for each question.
struct Reader : nn::Module {
  explicit Reader(const std::string& attention)
      : tokens(register_module<nn::Embedding>("tokens", kQuestion + 1, kDim)),
        marks(register_module<nn::Embedding>("marks", kCode + 1, kDim)),
        head(register_module<nn::Linear>("head", kDim, kDigits)) {
    // Marks are larger, so that the mean key of a block tells what marks the block has.
    nn::init::normal_(tokens.weight, 0, 0.1);
    nn::init::normal_(marks.weight, 0, 0.5);
    if (attention == kIndexer) {
      layer = indexed = &register_module<IndexedLayer>("layer");
    } else {
      layer = &register_module<nn::TransformerEncoder>(
          "layer", nn::TransformerOptions{.dim = kDim,
                                          .heads = kHeads,
                                          .layers = 1,
                                          .mlp_dim = 2 * kDim,
                                          .dropout = 0,
                                          .norm_placement = nn::NormPlacement::before,
                                          .final_norm = true,
                                          .attention = attention});
    }
  }
  // Logits [B, questions, digits].
  Tensor forward(const Tensor& x) override {
    const Tensor y = (*layer)(tokens(x.select(2, 0)) + marks(x.select(2, 1)));
    return head(y.narrow(1, y.size(1) - kQuestions, kQuestions));
  }

  nn::Embedding& tokens;
  nn::Embedding& marks;
  nn::Linear& head;
  nn::Module* layer;
  IndexedLayer* indexed = nullptr;
};

// Fraction of correct answers on 8 texts of the whole length that are not in the training data.
double accuracy(Reader& model, const Settings& settings) {
  const NoGradGuard no_grad;
  if (model.indexed) model.indexed->learns = false;
  const Batch test = make_batch(settings, ~settings.seed, 0, 8, settings.length);
  const Tensor right = eq(argmax(model(test.tokens)), test.answers);
  return right.to(default_dtype()).mean().item<double>();
}

// Texts are short at first, and have their whole length for the last fifth of the steps: from a
// distance, no gradient tells a state that forgets too fast, or blocks that are not chosen.
int64_t length_of(const Settings& settings, int64_t step) {
  const double done = static_cast<double>(step) / static_cast<double>(settings.steps);
  const double share = std::clamp(2 * done - 0.6, 0.0, 1.0);
  return std::llround(kShortest * std::pow(double(settings.length) / kShortest, share));
}

// The share of correct answers after every tenth of the steps.
optim::plot::Series train(const std::string& attention, const Settings& settings) {
  manual_seed(settings.seed);
  Reader model(attention);
  optim::AdamW optimizer(model.parameters(), {.lr = kRate});
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::printf("%s\n", attention.c_str());
  const int64_t tokens = settings.batch * settings.length;  // of a step, of up to kTexts texts
  optim::plot::Series curve{.name = attention};
  for (int64_t step = 1; step <= settings.steps; ++step) {
    const int64_t length = length_of(settings, step);
    const int64_t texts = std::max(settings.batch, std::min(kTexts, tokens / length));
    const Batch batch =
        make_batch(settings, settings.seed, step * std::max(kTexts, settings.batch), texts, length);
    // The indexer learns until texts have their whole length.
    if (model.indexed) model.indexed->learns = length < settings.length;
    Tensor loss = cross_entropy(model(batch.tokens), batch.answers);
    if (model.indexed && model.indexed->learns) loss = loss + model.indexed->lesson;
    optimizer.set_lr(kRate * static_cast<double>(settings.steps - step + 1) /
                     static_cast<double>(settings.steps));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (10 * step / settings.steps == 10 * (step - 1) / settings.steps) continue;
    curve.x.push_back(static_cast<double>(step));
    curve.y.push_back(100 * accuracy(model, settings));
    std::printf("  step %4lld  %5lld tokens  loss %.3f  %5.1f %% right  %.1f s\n",
                static_cast<long long>(step), static_cast<long long>(length), loss.item<double>(),
                curve.y.back(), seconds());
    std::fflush(stdout);
  }
  return curve;
}

int run(const Settings& settings) {
  set_default_device(Device::parse(settings.device));
  const std::vector<std::string>& all = !settings.attention.empty() ? settings.attention
                                        : settings.scatter          ? kScattered
                                                                    : kAtStart;
  std::vector<optim::plot::Series> curves;
  for (const std::string& attention : all) curves.push_back(train(attention, settings));
  std::printf("\nright answers over %lld tokens (chance %.0f %%)\n",
              static_cast<long long>(settings.length), 100.0 / kDigits);
  bool expected = true;
  for (const optim::plot::Series& curve : curves) {
    const double right = curve.y.back();
    std::printf("  %5.1f %%  %s\n", right, curve.name.c_str());
    expected = expected && (&curve == &curves[0] ? right < 30 : right > 95);
  }
  if (!settings.figure.empty()) {
    optim::plot::save(settings.figure,
                      optim::plot::lines(curves, {.x = {.label = "step"},
                                                  .y = {.label = "right answers", .unit = "%"}}));
  }
  return expected || all.size() == 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"Trains one layer to recall early tokens: with a window, and with what finds them."};
  app.option_defaults()->always_capture_default();
  const CLI::Range count(int64_t{1},
                         int64_t{1} << 24);  // CLI::PositiveNumber prints the limits of a double
  app.add_option("--attention", settings.attention,
                 "Train a kind that misses the code, and others: causal_window:64 kda")
      ->default_str("a window, then what finds the code");
  app.add_flag("--scatter", settings.scatter, "Put the digits at random places of the first half");
  app.add_option("--figure", settings.figure, "Draw right answers over the steps to this SVG file");
  app.add_option("--device", settings.device, "auto, cpu, cuda or cuda:<index>");
  app.add_option("--length", settings.length, "Tokens per text")
      ->check(CLI::Range(kShortest, int64_t{1} << 20));
  app.add_option("--steps", settings.steps, "Training steps")->check(count);
  app.add_option("--batch", settings.batch, "Texts per step; more while they are short")
      ->check(count);
  app.add_option("--seed", settings.seed, "Seed of weights and data")->check(check_seed);
  return run_program(app, argc, argv, [&] { return run(settings); });
}
