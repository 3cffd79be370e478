// ListOps of the Long Range Arena (Tay et al., 2021): the value, a digit, of a nested list of up to
// 2,000 tokens. By default the sizes and the training of the paper, and each of its kinds of
// attention that is a mask. Stops when it is told to and goes on from its checkpoint.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include <sash/core/parallel.h>
#include <sash/sash.h>

#include "../support/flags.h"
#include "expression.h"

using namespace sash;
using listops::Expression, listops::ExpressionOptions;

namespace {

// A token before the expression, whose state at the end gives the answer.
constexpr int64_t kClass = listops::kTokens, kVocab = kClass + 1;

struct Kind {
  const char* mask;
  double paper;  // accuracy in percent
};
const std::map<std::string, Kind> kKinds{
    {"full", {"full", 36.37}},
    {"local", {"local:50", 15.82}},
    {"longformer", {"longformer:256,0", 35.63}},
    {"bigbird", {"bigbird:64,3,2,3", 36.05}},
};

// Batches are padded to a multiple of this, so that few lengths occur.
constexpr int64_t kMultiple = 64;

struct Settings {
  std::string attention = "longformer", precision = "auto", save;
  int64_t steps = 5000, batch = 32, samples = 96000, tests = 2000, print = 0;
  int64_t dim = 512, heads = 8, layers = 6, feedforward = 2048, warmup = 1000, decay = 0;
  int64_t save_every = 500, validate_every = 1000;
  double lr = 0.05, seconds = 0;
  ExpressionOptions expressions{};

  // After the warm-up lr / sqrt(step).
  double rate(int64_t step) const {
    const auto n = static_cast<double>(step + 1), first = static_cast<double>(warmup);
    const double left =
        decay > 0 ? static_cast<double>(steps - step) / static_cast<double>(decay) : 1;
    return lr * std::min(1.0, left) * std::min(1.0, n / first) / std::sqrt(std::max(n, first));
  }
};

nn::data::SequenceDataset expressions(uint64_t seed, int64_t count,
                                      const ExpressionOptions& options) {
  std::vector<std::vector<int64_t>> sequences(static_cast<size_t>(count));
  std::vector<int64_t> values(sequences.size());
  parallel_for(count, 16, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Expression drawn = listops::random_expression(seed, i, options);
      sequences[i] = {kClass};
      sequences[i].insert(sequences[i].end(), drawn.tokens.begin(), drawn.tokens.end());
      values[i] = drawn.value;
    }
  });
  return nn::data::SequenceDataset(std::move(sequences),
                                   {.multiple = kMultiple, .labels = std::move(values)});
}

nn::data::Loader loader_of(const nn::data::SequenceDataset& dataset, int64_t batch, bool shuffle) {
  return nn::data::Loader(dataset, {.workers = 1,
                                    .sampler = nn::data::length_groups(
                                        dataset.lengths(), {.batch = batch, .shuffle = shuffle})});
}

// An encoder, and two layers that read the state of the class token.
struct Classifier : nn::ModuleOf<Classifier> {
  Classifier(const std::string& attention, const Settings& s)
      : tokens(register_module<nn::Embedding>("tokens", kVocab, s.dim)),
        positions(
            register_module<nn::Embedding>("positions", s.expressions.longest + kMultiple, s.dim)),
        encoder(register_module<nn::TransformerEncoder>(
            "encoder", nn::TransformerOptions{.dim = s.dim,
                                              .heads = s.heads,
                                              .layers = s.layers,
                                              .mlp_dim = s.feedforward,
                                              .mlp = nn::MlpKind::gelu,
                                              .norm_placement = nn::NormPlacement::before,
                                              .final_norm = true,
                                              .attention = attention})),
        hidden(register_module<nn::Linear>("hidden", s.dim, s.feedforward)),
        head(register_module<nn::Linear>("head", s.feedforward, 10)) {
    nn::init::normal_(tokens.weight, 0, 0.02);
    nn::init::normal_(positions.weight, 0, 0.02);
  }
  // Logits [B, 10] of tokens [B, S], of which each row has its own number.
  Tensor forward(const Tensor& x, const Tensor& lengths) {
    const Tensor embedded = tokens(x) + positions.weight.narrow(0, 0, x.size(1));
    const Tensor states = encoder(embedded, AttentionMask::key_lengths(lengths));
    return head(relu(hidden(states.select(1, 0)))).to(DType::float32);
  }

  nn::Embedding& tokens;
  nn::Embedding& positions;
  nn::TransformerEncoder& encoder;
  nn::Linear& hidden;
  nn::Linear& head;
};

// Ends a training after some seconds.
class TimeLimit : public optim::Callback {
 public:
  explicit TimeLimit(double seconds) : seconds_(seconds) {}
  void on_start(optim::Trainer& trainer) override { trainer_ = &trainer; }
  void on_step(const optim::StepReport&) override {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    if (seconds_ > 0 && passed.count() > seconds_) trainer_->stop();
  }

 private:
  double seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  optim::Trainer* trainer_ = nullptr;
};

// The weights of one kind of attention fit another, so their shapes do not tell.
void check_checkpoint(const Settings& s) {
  if (s.save.empty() || !std::filesystem::is_regular_file(s.save)) return;
  const auto extra = optim::checkpoint_info(s.save).extra;
  const auto kept = extra.find("attention");
  if (kept == extra.end() || kept->second == s.attention) return;
  throw ValueError("listops", "--attention " + kept->second + ", as in " + s.save, s.attention);
}

void train(const Settings& s) {
  check_checkpoint(s);
  set_tf32_allowed(s.precision == "tf32");
  const bool halves = s.precision == "auto" ? default_device().is_cuda() : s.precision == "bf16";
  const auto kind = kKinds.find(s.attention);
  const bool known = kind != kKinds.end();
  Classifier model(known ? kind->second.mask : s.attention, s);
  if (halves) model.bfloat16();
  optim::AdamW optimizer(model.parameters(),
                         {.beta2 = 0.98, .eps = 1e-9, .weight_decay = 0.1, .master_weights = true});
  nn::data::Loader loader = loader_of(expressions(1, s.samples, s.expressions), s.batch, true);
  nn::data::Loader test = loader_of(expressions(2, s.tests, s.expressions), s.batch, false);
  optim::Trainer trainer(model, optimizer, loader,
                         [&](const nn::data::Batch& b) -> optim::StepOutput {
                           const Tensor logits = model(b[0], b[2]);
                           const Tensor right = eq(argmax(logits), b[1]).to(DType::float32);
                           return {cross_entropy(logits, b[1]), {{"accuracy", right.mean()}}};
                         },
                         {.steps = s.steps,
                          .schedule = [&](int64_t step) { return s.rate(step); },
                          .validate = &test,
                          .validate_every = s.validate_every,
                          .save = s.save,
                          .save_every = s.save.empty() ? 0 : s.save_every,
                          .keep = 0,
                          .resume = s.save.empty() ? "" : "auto",
                          .extra = {{"attention", s.attention}},
                          .stop_on_signals = true});
  optim::ProgressLine progress;
  TimeLimit limit(s.seconds);
  trainer.add(progress);
  trainer.add(limit);
  trainer.run();
  std::printf("%s after step %lld: %.2f %% of %lld new expressions", s.attention.c_str(),
              static_cast<long long>(trainer.step()), 100 * trainer.validate().at("accuracy"),
              static_cast<long long>(s.tests));
  if (known) std::printf(" (the paper, at its sizes: %.2f %%)", kind->second.paper);
  std::printf("\n");
}

void print(const Settings& s) {
  for (int64_t i = 0; i < s.print; ++i) {
    const Expression drawn = listops::random_expression(1, static_cast<uint64_t>(i), s.expressions);
    std::printf("%lld %s\n", static_cast<long long>(drawn.value), to_string(drawn).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  Flags flags("Trains a transformer on ListOps of the Long Range Arena.");
  flags.add("--attention", s.attention, "full, local, longformer, bigbird, or a mask");
  flags.add("--steps", s.steps);
  flags.add_size("--batch", s.batch, "Expressions of a step");
  flags.add_size("--samples", s.samples, "Expressions to train on");
  flags.add_size("--tests", s.tests, "Expressions to test on");
  flags.add("--shortest", s.expressions.shortest, "All expressions have more tokens");
  flags.add("--longest", s.expressions.longest, "All expressions have fewer tokens");
  flags.add_size("--dim", s.dim);
  flags.add_size("--heads", s.heads);
  flags.add_size("--layers", s.layers);
  flags.add_size("--feedforward", s.feedforward);
  flags.add("--lr", s.lr, "Divided by the root of the step");
  flags.add("--warmup", s.warmup, "Steps");
  flags.add("--decay", s.decay, "Steps at the end in which the rate falls to 0");
  flags.add("--seconds", s.seconds, "Stop then; 0: after the last step");
  flags.add("--save", s.save, "The checkpoint: written, and gone on from if it is there");
  flags.add("--save-every", s.save_every, "Steps");
  flags.add("--validate-every", s.validate_every, "Steps");
  flags.add("--precision", s.precision, "auto: on a card bf16, with masters; else float32",
            {"auto", "float32", "tf32", "bf16"});
  flags.add("--print", s.print, "Only print this many expressions, each after its value");
  return flags.run(argc, argv, [&] {
    listops::check(s.expressions);
    s.print > 0 ? print(s) : train(s);
  });
}
