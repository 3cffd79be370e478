#include "ema.h"

#include <algorithm>
#include <string>

#include "../ops/checks.h"
#include "../ops/rows.h"
#include "../tensor/autograd/grad_mode.h"
#include "../tensor/io/state_check.h"

namespace sash::optim {

EMA::EMA(std::vector<Tensor> parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay) {
  check_probability("EMA", "a decay", decay);
  if (parameters_.empty()) throw ValueError("EMA", "parameters", "none");
  const NoGradGuard no_grad;
  for (const Tensor& p : parameters_) {
    check_defined("EMA", p, "parameters");
    check_floating("EMA", p);
    averages_.push_back(p.detach().clone().to(*row_statistics(p).dtype));
  }
}

void EMA::follow() {
  if (parameters_.empty()) throw ValueError("EMA", "averages", "averages that were moved from");
  for (size_t i = 0; i < averages_.size(); ++i) {
    const TensorOptions options = row_statistics(parameters_[i]);
    averages_[i] = averages_[i].to(*options.dtype).to(*options.device);
  }
}

void EMA::update() {
  if (!kept_.empty()) throw ValueError("EMA.update", "restored parameters", "applied averages");
  const NoGradGuard no_grad;
  follow();
  for (size_t i = 0; i < averages_.size(); ++i) {
    averages_[i].mul_(decay_).add_(parameters_[i].to(averages_[i].dtype()), 1 - decay_);
  }
}

void EMA::apply() {
  if (!kept_.empty()) throw ValueError("EMA.apply", "restored parameters", "applied averages");
  const NoGradGuard no_grad;
  follow();
  for (const Tensor& p : parameters_) kept_.push_back(p.detach().clone());
  for (size_t i = 0; i < averages_.size(); ++i) parameters_[i].copy_(averages_[i]);
}

void EMA::restore() {
  if (kept_.empty()) throw ValueError("EMA.restore", "applied averages", "none");
  const NoGradGuard no_grad;
  for (size_t i = 0; i < kept_.size(); ++i) parameters_[i].copy_(kept_[i]);
  kept_.clear();
}

void EMA::reset(const Tensor& parameter, const std::vector<int64_t>& rows) {
  if (!kept_.empty()) throw ValueError("EMA.reset", "restored parameters", "applied averages");
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const Tensor& p) { return p.is_same(parameter); });
  if (found == parameters_.end()) {
    throw ValueError("EMA.reset", "a parameter that is averaged", "another tensor");
  }
  const int64_t count = parameter.rank() > 0 ? parameter.size(0) : 0;
  for (const int64_t row : rows) {
    if (row >= 0 && row < count) continue;
    throw IndexError("EMA.reset", "a row below " + std::to_string(count), std::to_string(row));
  }
  const NoGradGuard no_grad;
  follow();
  const Tensor& average = averages_[static_cast<size_t>(found - parameters_.begin())];
  for (const int64_t row : rows) average.select(0, row).copy_(parameter.select(0, row));
}

StateDict EMA::state_dict() const {
  if (parameters_.empty()) throw ValueError("EMA", "averages", "averages that were moved from");
  StateDict dict;
  for (size_t i = 0; i < averages_.size(); ++i) dict.emplace_back(std::to_string(i), averages_[i]);
  return dict;
}

void EMA::load_state_dict(const StateDict& dict) {
  StateCheck check("EMA.load_state_dict", dict);
  for (const auto& [name, average] : state_dict()) check.expect(name, average.shape(), true);
  check.finish(true);
  const NoGradGuard no_grad;
  follow();
  for (auto& [name, average] : state_dict()) {
    Tensor into = average;
    into.copy_(*check.find(name));
  }
}

}  // namespace sash::optim
