#include "trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/muon.h>
#include <sash/optim/param_groups.h>
#include <sash/optim/profiler.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>

#include "settings.h"

using sash::Tensor;

namespace {

constexpr const char* kOp = "train_transformer";
constexpr double kClipNorm = 1.0;
constexpr int64_t kValidateEvery = 500;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

sash::nn::CausalLMOptions model_options(const Options& options, int64_t vocabulary,
                                        sash::Device device) {
  sash::nn::CausalLMOptions model{.vocab = vocabulary,
                                  .context = options.context,
                                  .dim = options.dim,
                                  .heads = options.heads,
                                  .layers = options.layers,
                                  .dropout = options.dropout};
  if (options.attention == "self") {
    model.mask = sash::eye(options.context, {.dtype = sash::DType::boolean, .device = device});
  } else {
    model.attention = options.attention;
  }
  return model;
}

std::unique_ptr<sash::optim::Optimizer> make_optimizer(const Options& options,
                                                       const sash::nn::CausalLM& model) {
  namespace optim = sash::optim;
  if (options.optimizer == "adamw") {
    return std::make_unique<optim::AdamW>(
        model.parameters(),
        optim::AdamWOptions{.lr = options.lr, .master_weights = true, .max_grad_norm = kClipNorm});
  }
  // Hidden matrices; AdamW trains the rest.
  const auto groups =
      optim::param_groups(model, {{.pattern = ".*(embedding|head|norm|bias).*", .ns_steps = 0}});
  return std::make_unique<optim::Muon>(groups, optim::MuonOptions{.lr = options.lr,
                                                                  .weight_decay = 1e-2,
                                                                  .master_weights = true,
                                                                  .max_grad_norm = kClipNorm});
}

void check_finite(const std::string& what, int64_t step, double value) {
  if (std::isfinite(value)) return;
  throw sash::ValueError(kOp, "a finite " + what + " at step " + std::to_string(step),
                         sash::to_text(value));
}

void check_finite(const char* what, int64_t step, const sash::StateDict& tensors) {
  const sash::NoGradGuard no_grad;
  for (const auto& [name, x] : tensors) {
    // x - x is 0 or NaN.
    if (!is_floating(x.dtype()) || abs(x - x).sum().item<double>() == 0) continue;
    throw sash::ValueError(kOp,
                           std::string("finite ") + what + " after step " + std::to_string(step),
                           "NaN or infinity in " + name);
  }
}

// --profile: ten steps, from the fourth on if there are so many.
class StepProfile {
 public:
  StepProfile(const std::string& path, int64_t steps)
      : path_(path), first_(std::clamp<int64_t>(steps - kSteps, 0, 3)) {}

  void before(int64_t step) {
    if (!path_.empty() && step == first_) profiler_.emplace();
  }
  void after(int64_t step, bool last, Console& console) {
    if (!profiler_ || (step + 1 < first_ + kSteps && !last)) return;
    profiler_->write_trace(path_);
    console.finish();
    std::printf("%s%s has the trace of %lld steps\n", profiler_->table().c_str(), path_.c_str(),
                static_cast<long long>(step + 1 - first_));
    profiler_.reset();
  }

 private:
  static constexpr int64_t kSteps = 10;
  std::string path_;
  int64_t first_;
  std::optional<sash::Profiler> profiler_;
};

}  // namespace

Trainer::Trainer(const Options& options, const Vocabulary& vocabulary, sash::Device device)
    : options_(options),
      vocabulary_(vocabulary),
      device_(device),
      update_([this](const std::vector<Tensor>& batch) { return update(batch); },
              {.device = device, .capture = options.capture}) {
  model_ = std::make_unique<sash::nn::CausalLM>(model_options(options, vocabulary.size(), device));
  model_->to(device);
  if (options.precision == "bf16") model_->to(sash::DType::bfloat16);
  if (options.precision == "f16") model_->to(sash::DType::float16);
  if (options.precision == "f16") scaler_.emplace();
  optimizer_ = make_optimizer(options, *model_);
  if (options.resume.empty()) return;
  step_ = sash::optim::load_checkpoint(options.resume, *model_, *optimizer_, scaler()).step;
  saved_step_ = step_;
}

std::optional<double> Trainer::run(const Corpus& corpus, Console& console, Metrics& metrics,
                                   const StopSignals& signals) {
  std::optional<double> last_loss;
  bool metrics_failed = false;
  StepProfile profile(options_.profile, options_.steps - step_);
  int64_t steps = 0;
  while (step_ < options_.steps && !signals.stop()) {
    profile.before(steps);
    StepReport report = train_step(corpus);
    const bool last = step_ == options_.steps;
    profile.after(steps, last, console);
    if (last && !options_.save.empty()) {
      save(options_.save, corpus);
    } else if (options_.save_every > 0 && step_ % options_.save_every == 0) {
      save_now_and_then(corpus, console);
    }
    if (last || step_ % kValidateEvery == 0) report.val_loss = validation_loss(corpus, &signals);
    if (last) last_loss = report.val_loss;
    console.report(report);
    // The first step always runs eagerly, and recording is tried twice.
    if (++steps == 3 && options_.capture && device_.is_cuda() && !update_.reason().empty()) {
      console.warn("steps are not recorded as a CUDA graph: " + update_.reason());
    }
    metrics.report(report);
    if (metrics.failed() && !metrics_failed) console.warn("cannot write the metrics");
    metrics_failed = metrics.failed();
  }
  console.finish();
  return last_loss;
}

StepReport Trainer::train_step(const Corpus& corpus) {
  const auto start = std::chrono::steady_clock::now();
  const sash::optim::WarmupCosine schedule{.lr = options_.lr,
                                           .warmup = std::min<int64_t>(50, options_.steps / 10),
                                           .total = options_.steps,
                                           .floor = options_.lr / 20};
  StepReport report;
  report.lr = schedule(step_);
  optimizer_->set_lr(report.lr);
  const auto [tokens, targets] =
      corpus.batch(options_.batch, options_.context, options_.seed, step_);
  const Tensor loss = update_({tokens, targets});
  const Tensor norm = update_.results()[1];
  report.step = ++step_;
  report.loss = loss.item<double>();
  report.grad_norm = norm.item<double>();
  const double seconds = seconds_since(start);
  report.ms = seconds * 1000;
  report.tokens_per_s = static_cast<double>(options_.batch * options_.context) / seconds;
  check_finite("loss", step_, report.loss);
  if (!scaler_) check_finite("gradient norm", step_, report.grad_norm);  // it skips such steps
  return report;
}

std::vector<Tensor> Trainer::update(const std::vector<Tensor>& batch) {
  optimizer_->zero_grad();
  const Tensor loss = loss_on({batch[0], batch[1]});
  if (scaler_) {
    scaler_->scale(loss).backward();
    scaler_->step(*optimizer_);
    scaler_->update();
  } else {
    loss.backward();
    optimizer_->step();
  }
  return {loss, optimizer_->grad_norm()};
}

Tensor Trainer::loss_on(const std::pair<Tensor, Tensor>& batch) {
  Tensor logits = (*model_)(batch.first.to(device_));
  if (is_half(logits.dtype())) logits = logits.to(sash::DType::float32);  // halves have 3 digits
  return cross_entropy(logits, batch.second.to(device_));
}

std::optional<double> Trainer::validation_loss(const Corpus& corpus, const StopSignals* signals) {
  const sash::NoGradGuard no_grad;
  model_->eval();
  const int64_t windows = corpus.valid_window_count(options_.context);
  double nats = 0;
  int64_t first = 0;
  for (; first < windows && !(signals && signals->stop()); first += options_.batch) {
    const int64_t count = std::min(options_.batch, windows - first);
    const Tensor loss = loss_on(corpus.valid_windows(first, count, options_.context));
    nats += loss.item<double>() * static_cast<double>(count);
  }
  model_->train();
  if (first < windows) return std::nullopt;
  check_finite("validation loss", step_, nats);
  return nats / static_cast<double>(windows);
}

std::string Trainer::write(const std::string& prompt, int64_t count) {
  const std::vector<int64_t> start = vocabulary_.encode("a --prompt", prompt);
  return vocabulary_.decode(
      model_->generate(start, count,
                       {.temperature = options_.temperature,
                        .seed = options_.seed,
                        .stride = std::max<int64_t>(1, options_.context / 4)}));
}

void Trainer::save_now_and_then(const Corpus& corpus, Console& console) {
  if (options_.save.empty()) return;
  try {
    save(options_.save, corpus);
  } catch (const sash::IoError& error) {
    console.warn("step " + std::to_string(step_) + " is not saved: " + error.what());
  }
}

void Trainer::save(const std::string& path, const Corpus& corpus) {
  check_finite("parameters", step_, model_->state_dict());
  check_finite("optimizer state", step_, optimizer_->state_dict());
  sash::optim::CheckpointInfo info{.step = step_, .extra = settings_of(options_)};
  info.extra["vocabulary"] = vocabulary_.hex();
  info.extra["fingerprint"] = corpus.fingerprint();
  sash::optim::save_checkpoint(path, *model_, *optimizer_, info, scaler());
  saved_step_ = step_;
}
