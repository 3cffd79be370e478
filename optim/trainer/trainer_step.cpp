// One update of a trainer.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "../../core/quote.h"
#include "../../ops/elementwise/binary.h"
#include "../../ops/elementwise/compare.h"
#include "../../ops/elementwise/where.h"
#include "../../tensor/autograd/anomaly.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/draws.h"
#include "../../tensor/factories.h"
#include "../../tensor/tensor_impl.h"
#include "nan_guard.h"
#include "trainer_state.h"

namespace sash::optim {

using detail::check_output;
using detail::checked_weight;
using detail::kTrainer;
using detail::MetricSum;
using detail::samples_in;
using detail::UpdateSums;

namespace {

using Tensors = std::vector<Tensor>;
using Clock = std::chrono::steady_clock;

int64_t tokens_in(const nn::data::Batch& batch) {
  return !batch.empty() && !is_floating(batch[0].dtype()) ? batch[0].numel() : 0;
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
      throw ValueError(op, "metrics with distinct names, none of them 'loss'",
                       "two named " + quoted);
    }
    if (!value.defined()) {
      throw ValueError(op, "a tensor as metric " + quoted, "an undefined one");
    }
    if (value.numel() != 1) {
      throw ShapeError(op, "one element as metric " + quoted, "shape " + to_string(value.shape()));
    }
  }
  if (output.weight.defined() && output.weight.numel() != 1) {
    throw ShapeError(op, "a weight of one element", "shape " + to_string(output.weight.shape()));
  }
}

double detail::checked_weight(const Tensor& weight) {
  const auto value = weight.item<double>();
  if (value > 0 && std::isfinite(value)) return value;
  throw ValueError(kTrainer, "a finite weight above 0", to_text(value));
}

void detail::check_weighted(bool expected, const StepOutput& output) {
  if (output.weight.defined() == expected) return;
  throw ValueError(kTrainer, "a weight with every batch, or with none", "both");
}

Tensor StepOutput::scalar_on(const Tensor& loss, double value) {
  if (!loss.defined()) return {};  // which has its own error
  return full({}, value, {.dtype = DType::float64, .device = loss.device()});
}

// NaN for a weight that is not above 0, so that the update is not made: nothing here may wait for
// the device.
Tensor detail::UpdateSums::share_of(const StepOutput& output, const distributed::Group& group) {
  const bool first = batches++ == 0;
  if (!first) detail::check_weighted(first_weight.defined(), output);
  if (!output.weight.defined()) return {};
  const NoGradGuard no_grad;
  Tensor weight = output.weight.detach().to(output.loss.device()).to(DType::float64).view({});
  weight = where(gt(weight, 0), weight, weight * std::numeric_limits<double>::quiet_NaN());
  if (first) {
    first_weight = weight.clone();
    group.broadcast(first_weight);
  }
  return (weight / first_weight).to(output.loss.dtype());
}

void detail::UpdateSums::add(const StepOutput& output, const Tensor& share) {
  const NoGradGuard no_grad;
  const auto weighed = [&](const Tensor& x) {
    return share.defined() ? x.detach().view({}) * share : x.detach();
  };
  const auto sum = [](const Tensor& before, const Tensor& x) {
    return before.defined() && x.defined() ? before + x : x;
  };
  const Tensor wide = share.defined() ? share.to(DType::float64) : share;
  shares = sum(shares, wide);
  loss = sum(loss, weighed(output.loss));
  for (const auto& [name, value] : output.metrics) {
    auto known = std::find_if(metrics.begin(), metrics.end(),
                              [name = name](const MetricSum& m) { return m.name == name; });
    if (known == metrics.end()) known = metrics.insert(known, {name, {}, {}, 0});
    known->sum = sum(known->sum, weighed(value));
    known->shares = sum(known->shares, wide);
    ++known->batches;
  }
}

std::vector<nn::data::Batch> Trainer::State::next_batches() {
  if (!overfitted.empty()) return overfitted;
  std::vector<nn::data::Batch> all;
  const std::string start = loader && options.overfit_batch ? loader->state() : "";
  for (int64_t i = 0; i < options.accumulate; ++i) {
    const int64_t number = (options.overfit_batch ? 0 : step * options.accumulate) + i;
    const int64_t of_rank = number * options.group.size() + options.group.rank();
    all.push_back(loader ? loader->next_or_restart() : batches(of_rank));
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

// Adds the gradients of a batch, times its share, and its loss and metrics.
void Trainer::State::backward(const nn::data::Batch& batch, UpdateSums& sums, bool reduce) {
  const StepOutput output = step_function(batch);
  check_output(kTrainer, output);
  Tensor loss = output.loss, share;
  if (options.accumulate > 1 || parallel) {
    note_rows(batch, output, sums.row);
    if (anomaly_mode() && output.weight.defined()) checked_weight(output.weight);
    share = sums.share_of(output, options.group);
    if (share.defined()) loss = loss * share;
    loss = loss / static_cast<double>(options.accumulate);
  }
  if (options.scaler) loss = options.scaler->scale(loss);
  if (parallel) parallel->set_reduce(reduce);
  if (anomaly_mode()) {
    loss.backward();
  } else {
    // 1, or NaN if the loss is not finite: then no gradient is, and the optimizer skips the step.
    const NoGradGuard no_grad;
    const Tensor one = (loss - loss) + 1;
    loss.backward(one);
  }
  sums.add(output, share);
}

// A mean over the tokens of such batches is not one over all tokens.
void Trainer::State::note_rows(const nn::data::Batch& batch, const StepOutput& output, Shape& row) {
  if (told_rows || output.weight.defined() || batch.empty()) return;
  const Tensor& x = batch[0];
  if (x.rank() != 2 || x.size(0) != 1 || is_floating(x.dtype())) return;
  if (row.rank() == 0) row = x.shape();
  if (row == x.shape()) return;
  told_rows = true;
  warn(
      "batches [1, N] of different N have equal weights: return a weight, such as N, in "
      "StepOutput");
}

// Adds the sums of all ranks, so that those of a rank are those of an update of all batches.
void Trainer::State::add_ranks(UpdateSums& sums) const {
  const NoGradGuard no_grad;
  Tensors parts{sums.loss, sums.shares};
  for (const MetricSum& m : sums.metrics) parts.insert(parts.end(), {m.sum, m.shares});
  for (Tensor& part : parts) {
    part = part.defined() ? part.detach().to(DType::float64).view({1}).clone() : part;
  }
  std::vector<Tensor> defined;
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(defined),
               [](const Tensor& part) { return part.defined(); });
  options.group.all_reduce(defined);
  const auto place = [&](size_t at, Tensor& to) {
    if (parts[at].defined()) to = parts[at].view({});
  };
  place(0, sums.loss);
  place(1, sums.shares);
  sums.batches *= options.group.size();
  for (size_t i = 0; i < sums.metrics.size(); ++i) {
    place(2 * i + 2, sums.metrics[i].sum);
    place(2 * i + 3, sums.metrics[i].shares);
    sums.metrics[i].batches *= options.group.size();
  }
}

// The gradients of an update; the tensors are those of all batches, one after the other. With
// `reduce`, the last pass reduces the gradients over the ranks.
UpdateSums Trainer::State::backward_all(const Tensors& tensors, bool reduce) {
  optimizer.zero_grad();
  const auto width = static_cast<std::ptrdiff_t>(tensors.size()) / options.accumulate;
  UpdateSums sums;
  for (auto at = tensors.begin(); at != tensors.end(); at += width) {
    backward(nn::data::Batch(at, at + width), sums, reduce && at + width == tensors.end());
  }
  return sums;
}

// Makes an update. Returns the sums of losses and metrics, with the norm of the gradients between
// them.
Tensors Trainer::State::run_update(const Tensors& tensors) {
  UpdateSums sums = backward_all(tensors, true);
  if (parallel) add_ranks(sums);
  if (sums.shares.defined()) {  // from the mean of gradients times shares to the mean by weights
    const auto count = static_cast<double>(options.accumulate * options.group.size());
    const NoGradGuard no_grad;
    optimizer.scale_gradients(count / sums.shares);
  }
  if (options.scaler) {
    options.scaler->step(optimizer);
    options.scaler->update();
  } else {
    optimizer.step();
  }
  const NoGradGuard no_grad;
  const auto total = [](const Tensor& sum, const Tensor& shares, int64_t count) {
    return shares.defined() ? sum * (static_cast<double>(count) / shares) : sum;
  };
  Tensors results{total(sums.loss, sums.shares, sums.batches), optimizer.grad_norm()};
  metrics.clear();
  for (const MetricSum& sum : sums.metrics) {
    metrics.emplace_back(sum.name, sum.batches);
    results.push_back(total(sum.sum, sum.shares, sum.batches));
  }
  return results;
}

// The forward pass writes to running statistics before it is known whether the step is made. What
// no step has written to since it was kept is not copied again.
void Trainer::State::keep_buffers() {
  const NoGradGuard no_grad;
  if (steps_here == 0) {
    buffers.clear();
    const StateDict saved = model.state_dict();
    for (const auto& [name, buffer] : model.named_buffers()) {
      if (find(saved, name)) buffers.push_back({buffer});
    }
  }
  for (KeptBuffer& b : buffers) {
    const uint32_t version = b.buffer.impl().storage->version();
    b.written = b.written || (b.kept.defined() && b.version != version);
    if (b.kept.defined() && !b.written) continue;
    b.kept = b.buffer.detach().clone();
    b.version = version;
  }
}

void Trainer::State::put_back_buffers() {
  const NoGradGuard no_grad;
  for (KeptBuffer& b : buffers) b.buffer.copy_(b.kept);
}

StepReport Trainer::State::train_step() {
  const auto start = Clock::now();
  const std::vector<nn::data::Batch> all = next_batches();
  set_rate();
  const sash::detail::DrawsPlace before = sash::detail::place_of_draws();
  StepReport report{.steps = goal(), .lr = optimizer.lr()};
  Tensors tensors;
  for (const nn::data::Batch& batch : all) {
    tensors.insert(tensors.end(), batch.begin(), batch.end());
    report.tokens += tokens_in(batch);
    report.samples += samples_in(batch);
  }
  report.tokens = of_all_ranks(report.tokens);
  report.samples = of_all_ranks(report.samples);
  keep_buffers();
  update(tensors);
  const Tensors& results = update.results();
  const auto count = static_cast<double>(all.size()) * options.group.size();
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
    Tensors there;
    for (const Tensor& x : batch) there.push_back(x.to(optimizer.parameters()[0].device()));
    backward_all(there, false);
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
