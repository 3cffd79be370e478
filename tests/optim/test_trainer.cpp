// optim::Trainer: the bits of a loop written by hand, what it does with what is not finite, and
// when it ends.
#include <cmath>
#include <csignal>
#include <filesystem>

#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/nn/layers/batch_norm.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/optim/lion.h>
#include <sash/optim/muon.h>
#include <sash/optim/rmsprop.h>
#include <sash/optim/sgd.h>
#include <sash/optim/trainer/stop_signals.h>

#include "../support/compare.h"
#include "../support/small_training.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE("Trainer: the bits of a loop written by hand") {
  for (const bool scaled : {false, true}) {
    CAPTURE(scaled);
    Setup by_hand;
    optim::AdamW optimizer(by_hand.model.parameters(), {.lr = 1e-2, .max_grad_norm = 0.5});
    optim::GradScaler scaler({.init_scale = 256});
    std::vector<double> losses, norms;
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.set_lr(kSchedule(step));
      optimizer.zero_grad();
      double loss_sum = 0;
      for (int i = 0; i < 2; ++i) {
        const nn::data::Batch batch = by_hand.loader.next_or_restart();
        const Tensor loss = cross_entropy(by_hand.model(batch[0]), batch[1]);
        (scaled ? scaler.scale(loss / 2) : loss / 2).backward();
        loss_sum += loss.item<double>();
      }
      if (scaled) {
        scaler.step(optimizer);
        scaler.update();
      } else {
        optimizer.step();
      }
      losses.push_back(loss_sum / 2);
      norms.push_back(optimizer.grad_norm().item<double>());
    }

    Setup setup;
    optim::GradScaler own({.init_scale = 256});
    Record record;
    {
      optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                             {.steps = 20,
                              .schedule = kSchedule,
                              .accumulate = 2,
                              .max_grad_norm = 0.5,
                              .scaler = scaled ? &own : nullptr,
                              .validate = &setup.valid,
                              .validate_every = 3});
      trainer.add(record);
      CHECK(trainer.run() == optim::TrainerEnd::steps);
    }
    CHECK(setup.weights() == by_hand.weights());
    REQUIRE(record.reports.size() == 20);
    for (size_t i = 0; i < 20; ++i) {
      const optim::StepReport& report = record.reports[i];
      CHECK(report.loss == doctest::Approx(losses[i]).epsilon(1e-6));
      CHECK(report.grad_norm == norms[i]);
      CHECK(report.lr == kSchedule(static_cast<int64_t>(i)));
      CHECK(report.step == static_cast<int64_t>(i) + 1);
      CHECK(report.steps == 20);
      CHECK(report.tokens == 0);  // inputs are floating
      CHECK(report.samples >= 4);
      CHECK(report.samples <= 8);
      CHECK(report.unit() == "samples");
      CHECK(report.metrics.at("accuracy") <= 1);
      CHECK(report.validation.contains("loss") == ((i + 1) % 3 == 0 || i == 19));
    }
    CHECK(record.reports.back().validation.contains("accuracy"));
    CHECK(record.ends == 1);
    CHECK(setup.optimizer.max_grad_norm() == 0);
    CHECK(!setup.optimizer.skip_nonfinite());
  }
}

TEST_CASE("Trainer: groups keep their ratios under a schedule") {
  nn::Sequential model = make_model();
  const std::vector<Tensor> all = model.parameters();
  optim::SGD optimizer({optim::ParamGroup{.parameters = {all[0]}, .lr = 0.1},
                        optim::ParamGroup{.parameters = {all[2]}, .lr = 0.05}});
  Setup setup;
  optim::Trainer trainer(
      model, optimizer, setup.loader,
      [&](const nn::data::Batch& batch) { return cross_entropy(model(batch[0]), batch[1]); },
      {.steps = 1, .schedule = optim::Constant{.lr = 0.4}});
  trainer.run();
  CHECK(optimizer.lr(0) == 0.4);
  CHECK(optimizer.lr(1) == doctest::Approx(0.2));

  // A schedule that ended at 0 leaves no ratio.
  optimizer.set_lr(0, 0);
  optimizer.set_lr(0, 1);
  const auto refused = [&](const optim::TrainerOptions& options) {
    check_error<ValueError>(
        [&] {
          optim::Trainer again(
              model, optimizer, setup.loader,
              [&](const nn::data::Batch& batch) {
                return cross_entropy(model(batch[0]), batch[1]);
              },
              options);
        },
        "a rate of the first group above 0");
  };
  refused({.steps = 1, .schedule = optim::Constant{.lr = 0.4}});
  refused({.steps = 1,
           .validate = &setup.valid,
           .validate_every = 1,
           .plateau = optim::Plateau{.lr = 0.4}});
}

TEST_CASE("Trainer: what is not finite is named, and the model stays as it was") {
  struct Case {
    const char* named;
    std::function<Tensor(const Tensor&)> wrong;
  };
  const Case cases[] = {
      {"log: made the first NaN", [](const Tensor& x) { return log(-abs(x)); }},
      {"infinity is a result of exp", [](const Tensor& x) { return exp(x + 1e6); }},
      {"gradient of sqrt", [](const Tensor& x) { return sqrt(x * 0); }}};
  for (const Case& one : cases) {
    const char* const named = one.named;
    CAPTURE(named);
    Setup setup;
    std::vector<double> before;
    int64_t calls = 0;
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader,
                           [&](const nn::data::Batch& batch) {
                             const Tensor loss = cross_entropy(setup.model(batch[0]), batch[1]);
                             if (++calls <= 3) return loss;
                             if (before.empty()) before = setup.weights();
                             return loss + one.wrong(loss);
                           },
                           {.steps = 10});
    const std::string text = message_of<ValueError>([&] { trainer.run(); });
    CHECK_MESSAGE(text.find("at step 4, got") != std::string::npos, text);
    CHECK_MESSAGE(text.find(named) != std::string::npos, text);
    CHECK(trainer.step() == 3);
    CHECK(setup.weights() == before);
  }
  Setup setup;
  int64_t number = 0;
  optim::Trainer trainer(setup.model, setup.optimizer,
                         [&](int64_t) {
                           nn::data::Batch batch = setup.loader.next_or_restart();
                           if (++number == 2) batch[0] = batch[0] / 0.0;
                           return batch;
                         },
                         setup.step(), {.steps = 3});
  const std::string text = message_of<ValueError>([&] { trainer.run(); });
  CHECK_MESSAGE(text.find("tensor 0 of the batch is not finite") != std::string::npos, text);
}

TEST_CASE("Trainer: after a batch with NaN, training goes on with the bits of one without") {
  const auto train = [](bool faults) {
    Setup setup;
    std::vector<nn::data::Batch> batches;
    for (int i = 0; i < 6; ++i) batches.push_back(setup.loader.next_or_restart());
    int64_t broken = -1;
    optim::Trainer trainer(setup.model, setup.optimizer,
                           [&](int64_t index) {
                             nn::data::Batch batch = batches[static_cast<size_t>(index)];
                             if (index == broken) batch[0] = batch[0] * std::nan("");
                             return batch;
                           },
                           setup.step(), {.steps = 6});
    for (broken = faults ? 0 : 6; broken < 6; ++broken) {
      const std::string text = message_of<ValueError>([&] { trainer.run(); });
      const std::string where = "a finite loss at step " + std::to_string(broken + 1) +
                                ", got nan; tensor 0 of the batch is not finite";
      CHECK_MESSAGE(text.find(where) != std::string::npos, text);
      CHECK(trainer.step() == broken);
    }
    trainer.run();
    return setup.weights();
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("Trainer: an update that is not made leaves the running statistics") {
  const TemporaryFolder folder;
  const auto check = [&](bool infinite, bool scaled) {
    CAPTURE(infinite);
    CAPTURE(scaled);
    Setup setup;
    nn::Sequential model(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Linear(8, 2));
    const auto state = [&] {
      std::vector<double> all;
      for (const auto& [name, tensor] : model.state_dict()) {
        const std::vector<double> values = tensor.to(DType::float64).to_vector<double>();
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    };
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    optim::GradScaler scaler({.init_scale = 256});
    std::vector<double> before, after;
    int64_t number = 0;
    optim::Trainer trainer(
        model, optimizer,
        [&](int64_t) {
          nn::data::Batch batch = setup.loader.next_or_restart();
          if (++number != 3) return batch;
          before = state();
          if (infinite) batch[0] = batch[0] / 0.0;
          return batch;
        },
        [&](const nn::data::Batch& batch) {
          const Tensor loss = cross_entropy(model(batch[0]), batch[1]);
          return number == 3 ? loss + sqrt(loss * 0) : loss;
        },
        {.steps = 4, .scaler = scaled ? &scaler : nullptr});
    Record record;
    record.then = [&](const optim::StepReport& report) {
      if (report.step == 3) after = state();
    };
    trainer.add(record);
    if (scaled && !infinite) {
      trainer.run();
    } else {
      check_error<ValueError>([&] { trainer.run(); }, "at step 3, got");
      after = state();
    }
    CHECK(after == before);
    const auto& layer = dynamic_cast<const nn::BatchNorm1d&>(model[1]);
    CHECK(layer.num_batches_tracked.item<int64_t>() == (scaled && !infinite ? 3 : 2));
    trainer.save(folder.file("model"));
  };
  for (const bool infinite : {false, true}) {
    for (const bool scaled : {false, true}) check(infinite, scaled);
  }
}

TEST_CASE("Trainer: a step with gradients that are not finite is skipped by every optimizer") {
  const auto check = [](const char* kind, auto make) {
    CAPTURE(kind);
    manual_seed(1);
    const Tensor x = randn({4, 3}).requires_grad_(), y = x.detach().clone().requires_grad_();
    auto plain = make(std::vector<Tensor>{x}), skipping = make(std::vector<Tensor>{y});
    skipping.set_skip_nonfinite(true);
    for (int step = 0; step < 3; ++step) {
      const Tensor g = randn({4, 3});
      Tensor(x).set_grad(g.clone());
      Tensor(y).set_grad(g.clone());
      plain.step();
      skipping.step();
      CHECK(all_same(x, y));
      Tensor(y).set_grad(g / 0.0);
      skipping.step();
      CHECK(!std::isfinite(skipping.grad_norm().template item<double>()));
    }
  };
  using P = std::vector<Tensor>;
  check("AdamW", [](const P& p) { return optim::AdamW(p, {.lr = 0.1}); });
  check("SGD", [](const P& p) { return optim::SGD(p, {.lr = 0.1, .momentum = 0.9}); });
  check("Lion", [](const P& p) { return optim::Lion(p, {.lr = 0.1}); });
  check("RMSprop", [](const P& p) { return optim::RMSprop(p, {.lr = 0.1}); });
  check("Muon", [](const P& p) { return optim::Muon(p, {.lr = 0.1}); });
}

TEST_CASE("Trainer: overfit_batch trains on one batch, also when resumed") {
  const TemporaryFolder folder;
  std::vector<std::vector<double>> seen;
  const auto train = [&](int64_t steps) {
    Setup setup;
    optim::Trainer trainer(
        setup.model, setup.optimizer, setup.loader,
        [&](const nn::data::Batch& batch) {
          seen.push_back(batch[0].to_vector<double>());
          return cross_entropy(setup.model(batch[0]), batch[1]);
        },
        {.steps = steps, .save = folder.file("run"), .resume = "auto", .overfit_batch = true});
    trainer.run();
  };
  train(3);
  train(6);
  REQUIRE(seen.size() == 6);
  for (const auto& batch : seen) CHECK(batch == seen[0]);
}

TEST_CASE("Trainer: a dry run does all of it once, and leaves no file") {
  const TemporaryFolder folder;
  Setup setup;
  Record record;
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 100,
                          .validate = &setup.valid,
                          .save = folder.file("run"),
                          .keep_best = true,
                          .dry_run = true});
  trainer.add(record);
  CHECK(trainer.run() == optim::TrainerEnd::steps);
  REQUIRE(record.reports.size() == 1);
  CHECK(record.reports[0].validation.contains("loss"));
  CHECK(record.saved.size() == 1);
  CHECK(names_in(folder.file("run")).empty());
}

TEST_CASE("Trainer: a signal ends the training after a checkpoint") {
  const TemporaryFolder folder;
  Setup setup;
  Record record;
  record.then = [](const optim::StepReport& report) {
    if (report.step == 5) std::raise(SIGTERM);
  };
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 100, .save = folder.file("run"), .stop_on_signals = true});
  trainer.add(record);
  CHECK(trainer.run() == optim::TrainerEnd::signal);
  CHECK(trainer.signal() == SIGTERM);
  CHECK(names_in(folder.file("run")) == Names{"step-00000005.safetensors"});
}

TEST_CASE("Trainer: a stop before the first step is one") {
  struct Starting : optim::Callback {
    std::function<void(optim::Trainer&)> then;
    void on_start(optim::Trainer& trainer) override { then(trainer); }
  };
  const auto train = [](const std::function<void(optim::Trainer&)>& then) {
    Setup setup;
    Starting starting;
    starting.then = then;
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = 2, .stop_on_signals = true});
    trainer.add(starting);
    const optim::TrainerEnd end = trainer.run();
    CHECK(trainer.step() == (end == optim::TrainerEnd::steps ? 2 : 0));
    return end;
  };
  const auto raise = [](optim::Trainer&) { std::raise(SIGTERM); };
  CHECK(train([](optim::Trainer& trainer) { trainer.stop(); }) == optim::TrainerEnd::stopped);
  CHECK(train([](optim::Trainer&) {}) == optim::TrainerEnd::steps);
  {
    const optim::StopSignals outer;
    CHECK(train(raise) == optim::TrainerEnd::signal);
    CHECK(outer.received() == SIGTERM);
    {
      const optim::StopSignals inner;
      CHECK(inner.received() == SIGTERM);
    }
    CHECK(outer.received() == SIGTERM);
  }
  const optim::StopSignals later;
  CHECK_FALSE(later.stop());
}

TEST_CASE("Trainer: an on_end that throws leaves no signal handler, and hides no error") {
  struct Throwing : optim::Callback {
    void on_end(optim::Trainer&) override { throw IoError("Throwing", "no end"); }
  };
  const auto handler = [] {
    struct sigaction action {};
    sigaction(SIGTERM, nullptr, &action);
    return action.sa_handler;
  };
  const auto before = handler();
  for (const bool fails : {false, true}) {
    Setup setup;
    Record first, last;
    Throwing throwing;
    if (fails) first.then = [](const optim::StepReport&) { throw ValueError("step", "a", "b"); };
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = 2, .stop_on_signals = true});
    trainer.add(first);
    trainer.add(throwing);
    trainer.add(last);
    if (fails) {
      check_error<ValueError>([&] { trainer.run(); }, "step: expected a, got b");
    } else {
      check_error<IoError>([&] { trainer.run(); }, "no end");
    }
    CHECK(first.ends == 1);
    CHECK(last.ends == 1);
    CHECK((handler() == before));
  }
}

TEST_CASE("Trainer: a validation leaves the mode of each module") {
  Setup setup;
  setup.model[2].eval();
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 1, .validate = &setup.valid});
  trainer.validate();
  CHECK(setup.model.is_training());
  CHECK(setup.model[0].is_training());
  CHECK_FALSE(setup.model[2].is_training());
}

TEST_CASE("Trainer: options that contradict each other are refused") {
  const auto refused = [](const char* expected, auto change) {
    Setup setup;
    optim::TrainerOptions options{.steps = 1};
    change(options, setup);
    check_error<ValueError>(
        [&] {
          optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(), options);
        },
        expected);
  };
  using Options = optim::TrainerOptions;
  refused("accumulate of at least 1", [](Options& o, Setup&) { o.accumulate = 0; });
  refused("steps of at least 0", [](Options& o, Setup&) { o.steps = -1; });
  refused("save with save_every", [](Options& o, Setup&) { o.save_every = 2; });
  refused("save with resume", [](Options& o, Setup&) { o.resume = "auto"; });
  refused("validate with patience", [](Options& o, Setup&) { o.patience = 2; });
  refused("validate with validate_every", [](Options& o, Setup&) { o.validate_every = 2; });
  refused("validate_every with patience", [](Options& o, Setup& s) {
    o.patience = 2;
    o.validate = &s.valid;
  });
  refused("a max_grad_norm of at least 0", [](Options& o, Setup&) { o.max_grad_norm = -1; });
  refused("keep of 1 or more", [](Options& o, Setup&) {
    o.save = "run";
    o.keep = 0;
    o.keep_best = true;
  });
}
