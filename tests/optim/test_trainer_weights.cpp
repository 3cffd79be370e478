// optim::Trainer: batches of different weights, in validations and in updates of several batches.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/nn/data/sequence_dataset.h>
#include <sash/nn/layers/embedding.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/optim/profiler.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/autograd/grad_mode.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/scopes.h"
#include "../support/small_training.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Tokens = std::vector<int64_t>;

// Packed texts of 1, 9, 4, 2 and 3 tokens with a target each, two texts a batch.
nn::data::SequenceDataset packed_texts() {
  std::vector<Tokens> texts;
  int64_t next = 0;
  for (const int64_t length : {1, 9, 4, 2, 3}) {
    Tokens& text = texts.emplace_back();
    for (int64_t i = 0; i <= length; ++i) text.push_back(next++ % 7);
  }
  return nn::data::SequenceDataset(texts, {.form = nn::data::SequenceBatch::packed});
}

// A table of logits, whose loss a plain loop gives, too.
struct Bigrams {
  Bigrams() { manual_seed(6); }
  nn::Embedding table{7, 7};
  optim::SGD optimizer{table.parameters(), {.lr = 0.5}};
  nn::data::Loader train{packed_texts(), {.batch = 2}}, valid{packed_texts(), {.batch = 2}};

  Tensor loss(const nn::data::Batch& batch) {
    return cross_entropy(table(batch[0]).view({-1, 7}), batch[1].view({-1}));
  }
  optim::StepFunction step(bool weighted) {
    return [this, weighted](const nn::data::Batch& batch) -> optim::StepOutput {
      const Tensor right = eq(argmax(table(batch[0]), -1), batch[1]).to(DType::float32).mean();
      if (!weighted) return {loss(batch), {{"accuracy", right}}};
      return {loss(batch), {{"accuracy", right}}, batch[0].numel()};
    };
  }
};

// The loss of x, its weight, of the batches x and weight.
optim::StepOutput given(const nn::data::Batch& batch, const Tensor& parameter) {
  return {(parameter * batch[0]).sum(), {{"x", batch[0].sum()}}, batch[1]};
}

}  // namespace

TEST_CASE_TEMPLATE("Trainer: a validation over packed batches is the mean over tokens", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const DefaultDevice scope(On::device);
  Bigrams model;
  double sum = 0, tokens = 0, right = 0;
  for (const nn::data::Batch& batch : model.valid) {
    const Tensor table = model.table(batch[0]);
    const std::vector<double> logits = table.to_vector<double>();
    const Tokens targets = batch[1].to_vector<int64_t>();
    for (size_t i = 0; i < targets.size(); ++i, ++tokens) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(7 * i);
      double all = 0;
      for (int k = 0; k < 7; ++k) all += std::exp(row[k]);
      sum += std::log(all) - row[targets[i]];
      right += std::max_element(row, row + 7) - row == targets[i];
    }
  }
  Record record;
  const auto validate = [&](bool weighted) {
    optim::Trainer trainer(model.table, model.optimizer, model.train, model.step(weighted),
                           {.steps = 1, .validate = &model.valid});
    trainer.add(record);
    return trainer.validate();
  };
  CHECK(tokens == 19);
  const auto found = validate(true);
  CHECK(found.at("loss") == doctest::Approx(sum / tokens).epsilon(1e-5));
  CHECK(found.at("accuracy") == doctest::Approx(right / tokens).epsilon(1e-5));
  CHECK(record.warnings.empty());
  // Without a weight batches count alike, with a word.
  CHECK(validate(false).at("loss") != doctest::Approx(sum / tokens).epsilon(1e-5));
  REQUIRE(record.warnings.size() == 1);
  CHECK(record.warnings[0].starts_with("batches [1, N] of different N have equal weights"));
}

TEST_CASE_TEMPLATE("Trainer: accumulated gradients are those of the mean over all tokens", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const DefaultDevice scope(On::device);
  for (const bool scaled : {false, true}) {
    CAPTURE(scaled);
    // 1 token of loss 10 p and 9 of 1 p: in the mean 1.9 p, not 5.5 p.
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      Tensor p = ones({}, {.dtype = dtype}).requires_grad_();
      optim::SGD sgd({p}, {.lr = 1});
      nn::Sequential none;
      optim::GradScaler scaler({.init_scale = 8});
      optim::Trainer trainer(
          none, sgd,
          [&](int64_t number) {
            const bool odd = number % 2 == 1;
            return nn::data::Batch{full({1}, odd ? 1.0 : 10.0, {.dtype = dtype}),
                                   full({}, odd ? 9 : 1, {.dtype = DType::int64})};
          },
          [&](const nn::data::Batch& batch) { return given(batch, p); },
          {.steps = 1, .accumulate = 2, .scaler = scaled ? &scaler : nullptr});
      Record record;
      trainer.add(record);
      trainer.run();
      const double exact = dtype == DType::bfloat16 ? 1.8984375 : 1.9;
      CHECK(p.grad().item<double>() == doctest::Approx(exact * (scaled ? 8 : 1)).epsilon(1e-6));
      CHECK(record.reports[0].loss == doctest::Approx(1.9).epsilon(1e-6));
      CHECK(record.reports[0].metrics.at("x") == doctest::Approx(1.9).epsilon(1e-6));
    }
  }
  // The same as one batch of all.
  Bigrams parts, whole;
  Record record;
  optim::Trainer trainer(parts.table, parts.optimizer, parts.train, parts.step(true),
                         {.steps = 4, .accumulate = 3, .capture = true});
  trainer.add(record);
  trainer.run();
  nn::data::Loader all(packed_texts(), {.batch = 5});
  for (size_t step = 0; step < 4; ++step) {
    const Tensor loss = whole.loss(all.next_or_restart());
    whole.optimizer.zero_grad();
    loss.backward();
    whole.optimizer.step();
    CHECK(record.reports[step].loss == doctest::Approx(loss.item<double>()).epsilon(1e-5));
  }
  CHECK(relative_error(parts.table.weight, whole.table.weight) < 1e-6);
  CHECK(record.warnings.empty());
}

TEST_CASE_TEMPLATE("Trainer: equal weights have the bits of none", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const DefaultDevice scope(On::device);
  const auto train = [](int64_t accumulate, int weight, DType dtype) {
    Setup setup;
    setup.model.to(dtype);
    const auto step = [&](const nn::data::Batch& batch) -> optim::StepOutput {
      const optim::StepOutput output = setup.step()({batch[0].to(dtype), batch[1]});
      if (weight == 0) return output;
      return {output.loss, output.metrics, full({1}, weight, {.dtype = DType::int64})};
    };
    Record record;
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, step,
                           {.steps = 6, .accumulate = accumulate, .validate = &setup.valid});
    trainer.add(record);
    trainer.run();
    std::vector<double> all = setup.weights();
    for (const optim::StepReport& report : record.reports) {
      all.insert(all.end(), {report.loss, report.grad_norm, report.metrics.at("accuracy")});
    }
    return all;
  };
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    for (const int64_t accumulate : {1, 2, 3, 5, 7}) {
      CAPTURE(accumulate);
      const auto bits = train(accumulate, 0, dtype);
      CHECK(train(accumulate, 1, dtype) == bits);
      CHECK(train(accumulate, 4099, dtype) == bits);
    }
  }
}

TEST_CASE("Trainer: wrong weights are errors, and no step is made") {
  Tensor p = ones({1}).requires_grad_();
  optim::SGD sgd({p}, {.lr = 1});
  nn::Sequential none;
  const auto run = [&](std::vector<double> weights, bool validates, int64_t shape = 1) {
    p.detach().fill_(1);
    nn::data::Loader valid(samples(), {.batch = 11});
    size_t call = 0;
    optim::Trainer trainer(
        none, sgd, [](int64_t) { return nn::data::Batch{ones({1})}; },
        [&](const nn::data::Batch&) -> optim::StepOutput {
          const double weight = weights.at(call++ % weights.size());
          if (weight == -2) return p.sum();
          return {p.sum(), {}, full({shape}, weight)};
        },
        {.steps = 1, .accumulate = 2, .validate = &valid});
    const std::string error =
        thrown_by([&] { validates ? (void)trainer.validate() : (void)trainer.run(); });
    CHECK(p.item<double>() == 1);
    return error;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -1.0, nan, 1 / 0.0}) {
    CAPTURE(bad);
    const std::string part = "Trainer: expected a finite weight above 0, got " + to_text(bad);
    CHECK(run({1, bad}, true) == "ValueError: " + part);
    CHECK(run({bad, 1}, false).find(part) != std::string::npos);
    CHECK(run({1, bad}, false).find(part) != std::string::npos);
  }
  const std::string mixed = "ValueError: Trainer: expected a weight with every batch, or with none";
  for (const bool validates : {true, false}) {
    CHECK(run({1, -2}, validates).starts_with(mixed));
    CHECK(run({-2, 1}, validates).starts_with(mixed));
    CHECK(run({1}, validates, 2) ==
          "ShapeError: Trainer: expected a weight of one element, got shape [2]");
  }
}

TEST_CASE("Trainer: buffers that no step writes are kept without a copy in each step") {
  Setup setup;
  struct Counted : nn::Module {
    Tensor table = register_buffer("table", zeros({1 << 18}));
    Tensor calls = register_buffer("calls", zeros({}));
    nn::Linear& layer = register_module<nn::Linear>("layer", 4, 2);
    bool bad = false;
    Tensor forward(const Tensor& x) override {
      const NoGradGuard no_grad;
      if (is_training()) calls.add_(1);
      if (bad) table.add_(1);
      return x;
    }
  } model;
  optim::SGD sgd(model.parameters(), {.lr = 0.1});
  optim::Trainer trainer(model, sgd, setup.loader,
                         [&](const nn::data::Batch& batch) {
                           model(batch[0]);
                           const Tensor loss = cross_entropy(model.layer(batch[0]), batch[1]);
                           return model.bad ? loss / 0.0 : loss;
                         },
                         {.steps = 6});
  struct Watch : optim::Callback {
    explicit Watch(Counted& of) : model(of) {}
    void on_step(const optim::StepReport& report) override {
      if (report.step == 2) profiler = std::make_unique<optim::Profiler>();
      if (report.step == 4) {
        for (const optim::ProfileRow& row : profiler->rows())
          copied += row.op == "copy" ? row.bytes : 0;
        profiler.reset();
      }
      model.bad = report.step == 5;
    }
    Counted& model;
    std::unique_ptr<optim::Profiler> profiler{};
    int64_t copied = 0;
  } watch(model);
  trainer.add(watch);
  check_error<ValueError>([&] { trainer.run(); }, "a finite loss at step 6");
  CHECK(model.calls.item<double>() == 5);
  CHECK(model.table.abs().sum().item<double>() == 0);
  CHECK(watch.copied > 0);
  CHECK(watch.copied < 1 << 18);  // the table has 1 MiB
}
