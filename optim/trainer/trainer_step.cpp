// One update of a trainer.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string_view>

#include "../../core/quote.h"
#include "../../ops/elementwise/binary.h"
#include "../../tensor/autograd/anomaly.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/draws.h"
#include "nan_guard.h"
#include "trainer_state.h"

namespace sash::optim {

using detail::check_output;
using detail::kTrainer;
using detail::MetricSum;
using detail::samples_in;

namespace {

using Tensors = std::vector<Tensor>;
using Clock = std::chrono::steady_clock;

int64_t tokens_in(const data::Batch& batch) {
  const bool integers = !batch.empty() && !is_floating(batch[0].dtype());
  return integers ? batch[0].numel() : samples_in(batch);
}

}  // namespace

void detail::check_output(const char* op, const StepOutput& output) {
  if (!output.loss.defined()) throw ValueError(op, "a loss", "an undefined tensor");
  if (output.loss.numel() != 1) {
    throw ShapeError(op, "a loss of one element", "shape " + to_string(output.loss.shape()));
  }
  std::set<std::string_view> names{"loss"};
  for (const auto& [name, value] : output.metrics) {
    const std::string quoted = in_quotes(name);
    if (!names.insert(name).second) {
      throw ValueError(op, "metrics with names of their own", "two named " + quoted);
    }
    if (!value.defined()) {
      throw ValueError(op, "a tensor as metric " + quoted, "an undefined one");
    }
    if (value.numel() != 1) {
      throw ShapeError(op, "one element as metric " + quoted, "shape " + to_string(value.shape()));
    }
  }
}

std::vector<data::Batch> Trainer::State::next_batches() {
  if (!overfitted.empty()) return overfitted;
  std::vector<data::Batch> all;
  const std::string start = loader && options.overfit_batch ? loader->state() : "";
  for (int64_t i = 0; i < options.accumulate; ++i) {
    const int64_t number = (options.overfit_batch ? 0 : step * options.accumulate) + i;
    all.push_back(loader ? loader->next_or_restart() : batches(number));
    if (all.back().size() != all[0].size() || all[0].empty()) {
      throw ValueError(kTrainer, "the same number of tensors, at least 1, in each batch",
                       std::to_string(all.back().size()));
    }
  }
  if (options.overfit_batch) overfitted = all;
  if (!start.empty()) loader->load_state(start);  // a resumed run takes the same batch
  return all;
}

void Trainer::State::set_rate() {
  if (!options.schedule && !options.plateau) return;
  const double lr = options.plateau ? options.plateau->lr : options.schedule(step);
  for (size_t group = 0; group < optimizer.num_groups(); ++group) {
    optimizer.set_lr(group < ratios.size() ? lr * ratios[group] : lr, group);
  }
}

// Adds the gradients of a batch, and its metrics. Returns its loss.
Tensor Trainer::State::backward(const data::Batch& batch, std::vector<MetricSum>& sums) {
  const StepOutput output = step_function(batch);
  check_output(kTrainer, output);
  Tensor loss = output.loss;
  if (options.accumulate > 1) loss = loss / static_cast<double>(options.accumulate);
  if (options.scaler) loss = options.scaler->scale(loss);
  if (anomaly_mode()) {
    loss.backward();
  } else {
    // 1, or NaN if the loss is not finite: then no gradient is, and the optimizer skips the step.
    const NoGradGuard no_grad;
    const Tensor one = (loss - loss) + 1;
    loss.backward(one);
  }
  const NoGradGuard no_grad;
  for (const auto& metric : output.metrics) {
    const auto known = std::find_if(sums.begin(), sums.end(),
                                    [&](const MetricSum& sum) { return sum.name == metric.first; });
    if (known == sums.end()) {
      sums.push_back({metric.first, metric.second.detach(), 1});
    } else {
      known->sum = known->sum + metric.second;
      ++known->batches;
    }
  }
  return output.loss.detach();
}

// The tensors are those of all batches, one after the other. Returns the sums of losses and
// metrics, with the norm of the gradients between them.
Tensors Trainer::State::run_update(const Tensors& tensors) {
  optimizer.zero_grad();
  const size_t width = tensors.size() / static_cast<size_t>(options.accumulate);
  Tensor loss;
  std::vector<MetricSum> sums;
  for (auto at = tensors.begin(); at != tensors.end(); at += static_cast<std::ptrdiff_t>(width)) {
    const Tensor one = backward(data::Batch(at, at + static_cast<std::ptrdiff_t>(width)), sums);
    const NoGradGuard no_grad;
    loss = loss.defined() ? loss + one : one;
  }
  if (options.scaler) {
    options.scaler->step(optimizer);
    options.scaler->update();
  } else {
    optimizer.step();
  }
  Tensors results{loss, optimizer.grad_norm()};
  metrics.clear();
  for (const MetricSum& sum : sums) {
    metrics.emplace_back(sum.name, sum.batches);
    results.push_back(sum.sum);
  }
  return results;
}

// The forward pass writes to running statistics before it is known whether the step is made.
void Trainer::State::keep_buffers() {
  const NoGradGuard no_grad;
  if (steps_here == 0) {
    buffers.clear();
    const StateDict saved = model.state_dict();
    for (const auto& [name, buffer] : model.named_buffers()) {
      if (find(saved, name)) buffers.emplace_back(buffer, Tensor());
    }
  }
  for (auto& [buffer, kept] : buffers) kept = buffer.detach().clone();
}

void Trainer::State::put_back_buffers() {
  const NoGradGuard no_grad;
  for (auto& [buffer, kept] : buffers) buffer.copy_(kept);
}

StepReport Trainer::State::train_step() {
  const auto start = Clock::now();
  const std::vector<data::Batch> all = next_batches();
  set_rate();
  const sash::detail::DrawsPlace before = sash::detail::place_of_draws();
  StepReport report{.steps = goal(), .lr = optimizer.lr()};
  Tensors tensors;
  for (const data::Batch& batch : all) {
    tensors.insert(tensors.end(), batch.begin(), batch.end());
    report.tokens += tokens_in(batch);
  }
  keep_buffers();
  update(tensors);
  const Tensors& results = update.results();
  const auto count = static_cast<double>(all.size());
  report.loss = results[0].item<double>() / count;
  report.grad_norm = results[1].item<double>();
  for (size_t i = 0; i < metrics.size() && i + 2 < results.size(); ++i) {
    const auto& [name, summed] = metrics[i];
    report.metrics[name] = results[i + 2].item<double>() / static_cast<double>(summed);
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) put_back_buffers();
  if (!std::isfinite(report.loss)) refuse("loss", report.loss, tensors, before);
  if (!options.scaler && !std::isfinite(report.grad_norm)) {  // a scaler leaves such steps out
    refuse("gradient norm", report.grad_norm, tensors, before);
  }
  report.step = ++step;
  ++steps_here;
  return report;
}

// The optimizer has not made the step, so it can be run again.
void Trainer::State::refuse(const std::string& what, double value, const Tensors& batch,
                            const sash::detail::DrawsPlace& before) {
  const auto rerun = [&] {
    const sash::detail::PrivateDraws draws(before);
    optimizer.zero_grad();
    std::vector<MetricSum> sums;
    const size_t width = batch.size() / static_cast<size_t>(options.accumulate);
    for (size_t at = 0; at < batch.size(); at += width) {
      data::Batch one;
      for (size_t i = at; i < at + width; ++i) {
        one.push_back(batch[i].to(optimizer.parameters()[0].device()));
      }
      backward(one, sums);
    }
  };
  const std::string cause = explain_nonfinite(batch, model.state_dict(), rerun);
  put_back_buffers();
  optimizer.zero_grad();
  sash::detail::go_back(before, optimizer.parameters()[0].device());
  ValueError error(kTrainer, "a finite " + what + " at step " + std::to_string(step + 1),
                   to_text(value));
  error.append(cause);
  throw error;
}

// The first step always runs eagerly, and recording is tried twice.
void Trainer::State::warn_of_capture() {
  const bool on_card = optimizer.parameters()[0].device().is_cuda();
  if (steps_here != 3 || !options.capture || !on_card || update.reason().empty()) return;
  warn("steps are not recorded as a CUDA graph: " + update.reason());
}

}  // namespace sash::optim
