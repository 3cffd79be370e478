#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/dropout.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/adam.h>
#include <sash/optim/trainer/trainer.h>
#include <sash/tensor/factories.h>

#include "names.h"

/// A training of a small classifier, to be run in tests of optim::Trainer.
namespace sash::testing {

inline const optim::WarmupCosine kSchedule{.lr = 1e-2, .warmup = 3, .total = 20, .floor = 1e-4};

// 22 samples of two classes.
inline nn::data::TensorDataset samples() {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < 22; ++i) {
    for (int64_t j = 0; j < 4; ++j) x.push_back(static_cast<float>((i * 7 + j * 5) % 11) - 5);
    y.push_back(x[static_cast<size_t>(4 * i)] > 0 ? 1 : 0);
  }
  const TensorOptions host{.device = kCPU};
  return nn::data::TensorDataset({tensor(x, {22, 4}, host), tensor(y, {22}, host)});
}

inline nn::Sequential make_model() {
  manual_seed(3);
  return nn::Sequential(nn::Linear(4, 8), nn::ReLU(), nn::Dropout(0.2), nn::Linear(8, 2));
}

// All that a training has.
struct Setup {
  nn::Sequential model = make_model();
  optim::AdamW optimizer{model.parameters(), {.lr = 1e-2}};
  nn::data::Loader loader{samples(), {.batch = 4, .shuffle = true, .seed = 9}};
  nn::data::Loader valid{samples(), {.batch = 8}};

  optim::StepFunction step() {
    return [this](const nn::data::Batch& batch) -> optim::StepOutput {
      const Tensor logits = model(batch[0]);
      const Tensor right = eq(argmax(logits, 1), batch[1]).to(DType::float32).mean();
      return {cross_entropy(logits, batch[1]), {{"accuracy", right}}};
    };
  }
  std::vector<double> weights() const {
    std::vector<double> all;
    for (const Tensor& p : model.parameters()) {
      const std::vector<double> values = p.to_vector<double>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

class Record : public optim::Callback {
 public:
  void on_start(optim::Trainer& trainer) override { started_at = trainer.step(); }
  void on_step(const optim::StepReport& report) override {
    reports.push_back(report);
    if (then) then(report);
  }
  void on_save(const std::string& path, int64_t) override { saved.push_back(path); }
  void on_warning(const std::string& text) override { warnings.push_back(text); }
  void on_end(optim::Trainer&) override { ++ends; }

  std::vector<double> losses() const {
    std::vector<double> all;
    for (const optim::StepReport& report : reports) all.push_back(report.loss);
    return all;
  }

  int64_t started_at = -1;
  int ends = 0;
  std::vector<optim::StepReport> reports{};
  std::vector<std::string> saved{}, warnings{};
  std::function<void(const optim::StepReport&)> then{};
};

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

template <class E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

template <class E>
void check_error(const std::function<void()>& call, const std::string& part) {
  const std::string text = message_of<E>(call);
  CHECK_MESSAGE(text.find(part) != std::string::npos, text);
}

}  // namespace sash::testing
