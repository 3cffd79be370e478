// Validations of optim::Trainer in a training that is made in parts.
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include <doctest/doctest.h>

#include <sash/optim/checkpoint.h>
#include <sash/optim/trainer/find_lr.h>

#include "../support/small_training.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE("Trainer: the validation at the end of a part counts for the best alone") {
  const TemporaryFolder folder;
  // Losses of the validations, by step.
  const std::map<int64_t, double> figures{{4, 5.0}, {6, 1.0}, {8, 4.0}, {12, 3.0}, {16, 3.5}};
  const auto train = [&](const std::string& name, int64_t steps, bool waits) {
    Setup setup;
    optim::TrainerOptions options{.steps = steps,
                                  .validate = &setup.valid,
                                  .validate_every = 4,
                                  .save = folder.file(name),
                                  .resume = "auto"};
    if (waits) options.patience = 1;
    if (!waits) options.plateau = optim::Plateau{.lr = 1e-2, .patience = 0};
    optim::Trainer* running = nullptr;
    options.validation_step = [&](const nn::data::Batch&) -> optim::StepOutput {
      const auto at = figures.find(running->step());
      return full({}, at == figures.end() ? 9.0 : at->second);
    };
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(), options);
    running = &trainer;
    trainer.run();
    return std::tuple(trainer.step(), trainer.best(), setup.optimizer.lr(), setup.weights());
  };
  for (const bool waits : {true, false}) {
    CAPTURE(waits);
    const std::string whole = waits ? "a" : "b", parts = waits ? "c" : "d";
    const auto [step, best, lr, weights] = train(whole, 18, waits);
    CHECK(step == (waits ? 16 : 18));
    CHECK(best == 3.0);
    train(parts, 6, waits);
    CHECK(train(parts, 18, waits) == std::tuple(step, std::optional(1.0), lr, weights));
  }
}

TEST_CASE("Trainer: forget_best counts the best of other validation data anew") {
  const TemporaryFolder folder;
  const auto train = [&](int64_t steps, double loss, bool forgets) {
    Setup setup;
    optim::Trainer trainer(
        setup.model, setup.optimizer, setup.loader, setup.step(),
        {.steps = steps,
         .validate = &setup.valid,
         .validation_step = [&](const nn::data::Batch&) { return full({}, loss); },
         .validate_every = 2,
         .patience = 2,
         .save = folder.file("run"),
         .keep_best = true,
         .resume = "auto",
         .forget_best = forgets});
    trainer.run();
    CHECK(trainer.step() == steps);
    return optim::checkpoint_info(folder.file("run/best.safetensors")).step;
  };
  CHECK(train(2, 1.0, false) == 2);
  CHECK(train(4, 2.0, false) == 2);
  CHECK(train(6, 2.0, true) == 6);
}

TEST_CASE("Trainer: an error of a validation does not lose the steps before it") {
  const TemporaryFolder folder;
  Setup setup;
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 5,
                          .validate = &setup.valid,
                          .validation_step = [](const nn::data::Batch&) -> optim::StepOutput {
                            throw ValueError("validation", "luck", "none");
                          },
                          .save = folder.file("run")});
  check_error<ValueError>([&] { trainer.run(); }, "expected luck, got none; " + folder.file("run"));
  const std::string saved = folder.file("run/step-00000005.safetensors");
  CHECK(optim::checkpoint_info(saved).step == 5);
  optim::Trainer resumed(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 5, .validate = &setup.valid, .resume = saved});
  resumed.run();
  CHECK(resumed.best().has_value());
}

TEST_CASE("Trainer: a wrong monitor is refused before the first step, with the figures there are") {
  Setup setup;
  const auto weights = setup.weights();
  optim::Accuracy accuracy;
  int batches = 0;
  const auto run = [&](const std::string& monitor) {
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = 2,
                            .validate = &setup.valid,
                            .validation_step =
                                [&](const nn::data::Batch& batch) {
                                  const Tensor logits = setup.model(batch[0]);
                                  accuracy.update(logits, batch[1]);
                                  // Only some batches have it.
                                  optim::StepOutput output(cross_entropy(logits, batch[1]));
                                  if (++batches % 3 == 0)
                                    output.metrics = {{"third", full({}, 3.0)}};
                                  return output;
                                },
                            .metrics = {{"accuracy", &accuracy}},
                            .monitor = monitor});
    trainer.run();
    CHECK(trainer.best() == trainer.validation().at(monitor));
    CHECK(trainer.options().maximize == (monitor == "accuracy"));
    return trainer.validation();
  };
  check_error<ValueError>([&] { run("acuracy"); },
                          "Trainer: expected a figure of the validation as monitor, which are "
                          "'accuracy', 'loss', 'third', got 'acuracy'");
  CHECK(setup.weights() == weights);
  CHECK(run("third").at("third") == 3);
  const auto found = run("accuracy");
  CHECK(setup.weights() != weights);
  setup.model.eval();
  double right = 0, rows = 0;
  for (const nn::data::Batch& batch : setup.valid) {
    const std::vector<double> hits =
        eq(setup.model(batch[0]).argmax(-1), batch[1]).to_vector<double>();
    right += std::accumulate(hits.begin(), hits.end(), 0.0);
    rows += static_cast<double>(hits.size());
  }
  CHECK(found.at("accuracy") == right / rows);
  const auto make = [&](const std::string& name, optim::Metric* metric) {
    return [&setup, name, metric] {
      optim::Trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                     {.steps = 1, .validate = &setup.valid, .metrics = {{name, metric}}});
    };
  };
  check_error<ValueError>(make("a", nullptr), "expected metrics that are not null, got null");
  check_error<ValueError>(make("loss", &accuracy), "another name than 'loss' for a metric");
}

TEST_CASE("Trainer: an early end says why, the best figure and its step, also after a resume") {
  const TemporaryFolder folder;
  Setup setup;
  const std::vector<double> losses{3, 1.25, 2, 2};
  size_t validations = 0;
  const auto train = [&](int64_t patience) {
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = 30,
                            .validate = &setup.valid,
                            .validation_step =
                                [&](const nn::data::Batch&) {
                                  return full({}, losses[std::min(validations, losses.size() - 1)]);
                                },
                            .validate_every = 2,
                            .patience = patience,
                            .save = folder.file("run"),
                            .resume = "auto"});
    struct Count : optim::Callback {
      explicit Count(size_t& validated) : count(validated) {}
      void on_step(const optim::StepReport& report) override {
        count += !report.validation.empty();
      }
      size_t& count;
    };
    Count count(validations);
    trainer.add(count);
    CHECK(trainer.ending().empty());
    trainer.run();
    CHECK(trainer.best_step() == 4);
    return trainer.ending();
  };
  CHECK(train(2) ==
        "ended after step 8 of 30: 2 validations without a better loss; the best loss is 1.25, of "
        "step 4");
  CHECK(train(3) ==
        "ended after step 10 of 30: 3 validations without a better loss; the best loss is 1.25, of "
        "step 4");
}

TEST_CASE("Trainer: a loss of several elements is an error, and no step is made") {
  Setup setup;
  const auto weights = setup.weights();
  const auto logits = [&](const nn::data::Batch& batch) -> optim::StepOutput {
    return setup.model(batch[0]);
  };
  const std::string expected = ": expected a loss of one element, got shape [4, 2]";
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, logits, {.steps = 2});
  check_error<ShapeError>([&] { trainer.run(); }, "Trainer" + expected);
  check_error<ShapeError>(
      [&] { optim::find_lr(setup.model, setup.optimizer, setup.loader, logits); },
      "find_lr" + expected);
  check_error<ValueError>([&] { optim::find_lr(setup.model, setup.optimizer, setup.loader, {}); },
                          "find_lr: expected a step function, got an empty one");
  CHECK(setup.weights() == weights);
}

TEST_CASE("Trainer: parts in evaluation mode stay so, a model in evaluation mode is trained") {
  Setup setup;
  const auto train = [&] {
    optim::Trainer(setup.model, setup.optimizer, setup.loader, setup.step(), {.steps = 1}).run();
  };
  setup.model[2].eval();
  train();
  CHECK_FALSE(setup.model[2].is_training());
  setup.model.eval();
  train();
  CHECK(setup.model[2].is_training());
}
