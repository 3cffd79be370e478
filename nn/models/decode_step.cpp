#include "decode_step.h"

#include <algorithm>
#include <exception>
#include <limits>

#include "../../core/backend/kernel.h"
#include "../../ops/elementwise/compare.h"
#include "../../ops/elementwise/where.h"
#include "../../ops/index/gather.h"
#include "../../ops/reduce/reduce.h"
#include "../../tensor/autograd/grad_mode.h"
#include "../../tensor/factories.h"

namespace sash::nn {
namespace {

// The places `best` of the likeliest tokens, but -1 where a logit is NaN, which is where `best`
// leads, or all are -inf.
Tensor checked(const Tensor& best, const Tensor& logits) {
  const Tensor top = gather(logits, 1, best.unsqueeze(1)).select(1, 0);
  return where(gt(top, -std::numeric_limits<double>::infinity()), best, -1);
}

// Puts numbers into an int64 tensor on the card.
void write(const Tensor& target, const std::vector<int64_t>& values) {
  Tensor words = target;
  if (values.size() == 1) {
    words.fill_(values[0]);
  } else {
    words.copy_(tensor(values, target.shape(), {.device = kCPU}));
  }
}

}  // namespace

DecodeStep::DecodeStep(LanguageModel& model, Texts texts, bool capture)
    : model_(model), texts_(std::move(texts)), capture_(capture) {
  if (texts_.empty()) throw ValueError("DecodeStep", "caches of at least one text", "none");
}

const Tensor& DecodeStep::operator()(const std::vector<int64_t>& tokens) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const Device device = model_.token_embedding.weight.device();
  const char* const other = model_.step_obstacle(texts_);
  if (other || (tokens_.defined() && tokens_.size(0) != rows)) {
    reason_ = other ? other : "the number of tokens changed";
    next_tokens_.clear();
    next_positions_.clear();
    results_ = {model_.next_logits(tensor(tokens, {rows, 1}, {.device = device}), texts_), {}};
    return results_.logits;
  }
  if (!tokens_.defined()) {
    const TensorOptions words{.dtype = DType::int64, .device = device};
    tokens_ = zeros({rows, 1}, words);
    positions_ = zeros({static_cast<int64_t>(texts_.size())}, words);
  }
  extend(tokens);
  next_tokens_.clear();
  if (const char* const found = obstacle()) {
    reason_ = found;
  } else if ((graph_ && graph_->fits() && graph_places_ == places()) || record()) {
    graph_->replay();
    reason_.clear();
    return results_.logits;
  }
  graph_.reset();
  results_ = run();
  warm_ = true;
  return results_.logits;
}

std::vector<int64_t> DecodeStep::likeliest() {
  if (!results_.logits.defined()) throw ValueError("DecodeStep.likeliest", "a step before", "none");
  const bool known = results_.likeliest.defined();
  const NoGradGuard no_grad;
  const Tensor& logits = results_.logits;
  const Tensor best = known ? results_.likeliest : checked(argmax(logits, -1), logits);
  std::vector<int64_t> tokens = best.to_vector<int64_t>();
  if (known) next_tokens_ = tokens;
  return tokens;
}

// Why this step is not recorded or replayed; null if nothing is known.
const char* DecodeStep::obstacle() const {
  if (!capture_) return "capture is false";
  if (!warm_) return "the first step runs eagerly";
  if (!failure_.empty()) return failure_.c_str();
  if (Graph::recording()) return "it is part of another graph";
  if (KernelObserver::installed()) return "kernels are being profiled";
  const int64_t room = model_.config().max_positions;
  const bool past = std::any_of(next_positions_.begin(), next_positions_.end(),
                                [room](int64_t next) { return next > room; });
  return room > 0 && past ? "positions are used up" : nullptr;
}

// Makes room for `tokens`, and writes them and their positions where they are not there already.
void DecodeStep::extend(const std::vector<int64_t>& tokens) {
  std::vector<int64_t> positions;
  for (const std::vector<KeyValueCache>* const text : texts_) {
    positions.push_back(text->at(0).length());
  }
  if (next_tokens_ != tokens) write(tokens_, tokens);
  if (next_positions_ != positions) write(positions_, positions);
  for (std::vector<KeyValueCache>* const text : texts_) {
    for (KeyValueCache& cache : *text) cache.extend();
  }
  for (int64_t& position : positions) ++position;
  next_positions_ = std::move(positions);
  const int64_t past = *std::max_element(next_positions_.begin(), next_positions_.end());
  for (std::optional<RotaryTable>& table : model_.tables_) {
    if (table) table->angles(0, past, DType::float32, tokens_.device());
  }
}

DecodeStep::Results DecodeStep::run() {
  const Tensor logits = model_.step_logits(tokens_, positions_, texts_);
  const Tensor best = argmax(logits, -1);
  tokens_.copy_(best.unsqueeze(1));
  positions_.add_(1);
  return {logits, checked(best, logits)};
}

// Whether there now is a graph of the step.
bool DecodeStep::record() {
  graph_.reset();
  results_ = {};
  try {
    auto graph = std::make_unique<Graph>(tokens_.device());
    results_ = run();
    graph->end();
    graph_ = std::move(graph);
  } catch (const std::exception& error) {
    reason_ = failure_ = error.what();
    return false;
  }
  graph_places_ = places();
  ++captures_;
  return true;
}

std::vector<const void*> DecodeStep::places() const {
  std::vector<const void*> all;
  for (const std::vector<KeyValueCache>* const text : texts_) {
    for (const KeyValueCache& cache : *text) {
      all.push_back(cache.keys().tensor_view().data);
      all.push_back(cache.values().tensor_view().data);
    }
  }
  for (std::optional<RotaryTable>& table : model_.tables_) {
    if (!table) continue;
    all.push_back(table->angles(0, 1, DType::float32, tokens_.device()).cos.tensor_view().data);
  }
  return all;
}

}  // namespace sash::nn
