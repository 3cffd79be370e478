#include "trainer.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include <sash/ops/cross_entropy.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/clip.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/grad_mode.h>

using sash::Tensor;

namespace {

constexpr double kClipNorm = 1.0;
constexpr int64_t kValidateEvery = 500;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The settings that a checkpoint must bring back for its weights and data to fit.
struct Setting {
  const char* name;
  int64_t Options::*value;
};
constexpr Setting kSettings[] = {{"context", &Options::context},
                                 {"layers", &Options::layers},
                                 {"heads", &Options::heads},
                                 {"dim", &Options::dim},
                                 {"batch", &Options::batch}};

// File metadata is text, and any byte may be part of the vocabulary.
std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    constexpr char digits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    text += {digits[byte / 16], digits[byte % 16]};
  }
  return text;
}

const std::string& entry(const sash::optim::CheckpointInfo& info, const std::string& key) {
  const auto found = info.extra.find(key);
  if (found == info.extra.end()) {
    throw sash::FormatError("train_transformer",
                            "the checkpoint was not written by this program: it has no " + key);
  }
  return found->second;
}

void take_settings(const sash::optim::CheckpointInfo& info, const Corpus& corpus,
                   Options& options) {
  for (const Setting& setting : kSettings) {
    const std::string& text = entry(info, setting.name);
    std::from_chars(text.data(), text.data() + text.size(), options.*setting.value);
  }
  options.attention = entry(info, "attention");
  if (entry(info, "vocabulary") != hex(corpus.bytes())) {
    throw sash::ValueError("train_transformer", "the text that the checkpoint was trained on",
                           "one with other characters");
  }
}

sash::nn::CausalLMOptions model_options(const Options& options, const Corpus& corpus,
                                        sash::Device device) {
  sash::nn::CausalLMOptions model{.vocab = corpus.vocabulary(),
                                  .context = options.context,
                                  .dim = options.dim,
                                  .heads = options.heads,
                                  .layers = options.layers,
                                  .dropout = options.dropout};
  model.mask = options.attention == "self"
                   ? sash::eye(options.context, {.dtype = sash::DType::boolean, .device = device})
                   : sash::AttentionMask::parse(options.attention);
  return model;
}

}  // namespace

Trainer::Trainer(Options& options, const Corpus& corpus, sash::Device device)
    : options_(options), corpus_(corpus), device_(device) {
  if (!options.resume.empty()) {
    take_settings(sash::optim::checkpoint_info(options.resume), corpus, options);
  }
  model_ = std::make_unique<sash::nn::CausalLM>(model_options(options, corpus, device));
  model_->to(device);
  optimizer_ = std::make_unique<sash::optim::AdamW>(model_->parameters(),
                                                    sash::optim::AdamWOptions{.lr = options.lr});
  if (!options.resume.empty()) {
    step_ = sash::optim::load_checkpoint(options.resume, *model_, *optimizer_).step;
  }
}

void Trainer::run(Console& console, Metrics& metrics, const std::atomic<bool>& stop) {
  while (step_ < options_.steps && !stop) {
    StepReport report = train_step();
    if (step_ % kValidateEvery == 0 && step_ < options_.steps) report.val_loss = validation_loss();
    console.report(report);
    metrics.report(report);
  }
  console.finish();
}

StepReport Trainer::train_step() {
  const auto start = std::chrono::steady_clock::now();
  const sash::optim::WarmupCosine schedule{.lr = options_.lr,
                                           .warmup = std::min<int64_t>(50, options_.steps / 10),
                                           .total = options_.steps,
                                           .floor = options_.lr / 20};
  StepReport report;
  report.lr = schedule(step_);
  optimizer_->set_lr(report.lr);
  const Tensor loss =
      loss_on(corpus_.batch(options_.batch, options_.context, options_.seed, step_));
  optimizer_->zero_grad();
  loss.backward();
  const Tensor norm = sash::optim::clip_grad_norm_(model_->parameters(), kClipNorm);
  optimizer_->step();
  report.step = ++step_;
  report.loss = loss.item<double>();
  report.grad_norm = norm.item<double>();
  const double seconds = seconds_since(start);
  report.ms = seconds * 1000;
  report.tokens_per_s = static_cast<double>(options_.batch * options_.context) / seconds;
  return report;
}

Tensor Trainer::loss_on(const std::pair<Tensor, Tensor>& batch) {
  return cross_entropy((*model_)(batch.first.to(device_)), batch.second.to(device_));
}

double Trainer::validation_loss() {
  const sash::NoGradGuard no_grad;
  model_->eval();
  const int64_t windows = corpus_.valid_window_count(options_.context);
  double nats = 0;
  for (int64_t first = 0; first < windows; first += options_.batch) {
    const int64_t count = std::min(options_.batch, windows - first);
    const Tensor loss = loss_on(corpus_.valid_windows(first, count, options_.context));
    nats += loss.item<double>() * static_cast<double>(count);
  }
  model_->train();
  return nats / static_cast<double>(windows);
}

std::string Trainer::write(const std::string& prompt, int64_t count) {
  return corpus_.decode(model_->generate(corpus_.encode(prompt), count,
                                         {.temperature = options_.temperature,
                                          .seed = options_.seed,
                                          .stride = std::max<int64_t>(1, options_.context / 4)}));
}

void Trainer::save(const std::string& path) const {
  sash::optim::CheckpointInfo info{.step = step_};
  for (const Setting& setting : kSettings) {
    info.extra[setting.name] = std::to_string(options_.*setting.value);
  }
  info.extra["attention"] = options_.attention;
  info.extra["vocabulary"] = hex(corpus_.bytes());
  sash::optim::save_checkpoint(path, *model_, *optimizer_, info);
}
