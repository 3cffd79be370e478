// optim::Trainer: its validations, what it takes for the best, and metrics.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>

#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/optim/checkpoint.h>

#include "../support/expect_error.h"
#include "../support/small_training.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Metrics = std::vector<std::pair<std::string, Tensor>>;

const double kNaN = std::numeric_limits<double>::quiet_NaN();

// Makes metrics of call number 0, 1, ... of the function.
optim::StepFunction with_metrics(Setup& setup, std::function<Metrics(int64_t)> metrics) {
  return [&setup, metrics, call = int64_t{0}](const nn::data::Batch& batch) mutable {
    return optim::StepOutput(cross_entropy(setup.model(batch[0]), batch[1]), metrics(call++));
  };
}

// One batch, whose figure "score" is the next of `scores`.
struct Scored {
  explicit Scored(std::vector<double> all) : scores(std::move(all)) {}

  optim::StepFunction step() {
    return with_metrics(setup, [this](int64_t) -> Metrics {
      const int64_t step = setup.loader.epoch() * setup.loader.size() + setup.loader.position();
      if (first < 0) first = step;  // the call that looks for the monitor, before a step
      const int64_t validation = std::max(step - first - 1, int64_t{0});
      return {{"score", scalar_tensor(scores.at(static_cast<size_t>(validation)))}};
    });
  }
  optim::TrainerOptions options(const std::string& save) {
    return {.steps = static_cast<int64_t>(scores.size()),
            .validate = &valid,
            .validation_step = step(),
            .validate_every = 1,
            .monitor = "score",
            .maximize = true,
            .save = save,
            .keep = 100,
            .keep_best = true,
            .resume = "auto"};
  }

  Setup setup{};
  nn::data::Loader valid{samples(), {.batch = 22}};
  std::vector<double> scores;
  int64_t first = -1;  // steps before the run
};

}  // namespace

TEST_CASE("Trainer: the training loader is no validation loader") {
  Setup setup;
  check_error<ValueError>(
      [&] {
        optim::Trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                       {.steps = 1, .validate = &setup.loader});
      },
      "Trainer: expected another loader as validate, got the training's");
}

TEST_CASE("Trainer: a validation loader at the end of an epoch starts the next") {
  Setup setup;
  for (int64_t i = 0; i < setup.valid.size(); ++i) setup.valid.next();
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 1, .validate = &setup.valid});
  CHECK(trainer.validate().at("loss") > 0.1);
  CHECK(trainer.validate().size() == 2);
}

TEST_CASE("Trainer: a NaN is never the best, and anything is better than one") {
  const TemporaryFolder folder;
  const std::string run = folder.file("run");
  Scored first({kNaN, 0.25, kNaN, 0.5, 0.375});
  optim::TrainerOptions options = first.options(run);
  options.patience = 3;
  optim::Trainer trainer(first.setup.model, first.setup.optimizer, first.setup.loader,
                         first.setup.step(), options);
  CHECK(trainer.run() == optim::TrainerEnd::steps);
  CHECK(trainer.best() == 0.5);
  CHECK(optim::checkpoint_info(run + "/best.safetensors").step == 4);

  // Only NaN so far.
  const std::string other = folder.file("other");
  Scored bad({kNaN});
  optim::Trainer(bad.setup.model, bad.setup.optimizer, bad.setup.loader, bad.setup.step(),
                 bad.options(other))
      .run();
  CHECK(names_in(other) == Names{"step-00000001.safetensors"});
  // A checkpoint that has one as its best.
  optim::save_checkpoint(other + "/step-00000001.safetensors", bad.setup.model, bad.setup.optimizer,
                         {.step = 1, .extra = {{"trainer.best", "nan"}}}, nullptr,
                         &bad.setup.loader);
  Scored rest({0.125, 0.0625});
  optim::Trainer resumed(rest.setup.model, rest.setup.optimizer, rest.setup.loader,
                         rest.setup.step(), rest.options(other));
  CHECK_FALSE(resumed.best());
  resumed.run();
  CHECK(resumed.best() == 0.125);
}

TEST_CASE("Trainer: the best by another figure, or in the other direction, is none") {
  const TemporaryFolder folder;
  const std::string run = folder.file("run");
  const auto train = [&](std::vector<double> scores, auto change) {
    Scored scored(std::move(scores));
    optim::TrainerOptions options = scored.options(run);
    change(options);
    optim::Trainer trainer(scored.setup.model, scored.setup.optimizer, scored.setup.loader,
                           scored.setup.step(), options);
    const std::optional<double> loaded = trainer.best();
    trainer.run();
    return std::pair(loaded, trainer.best());
  };
  const auto same = [](optim::TrainerOptions&) {};
  CHECK(train({0.5}, same).second == 0.5);
  const auto again = train({0.25, 0}, same);
  CHECK(again.first == 0.5);
  CHECK(again.second == 0.5);
  CHECK(optim::checkpoint_info(run + "/best.safetensors").step == 1);
  const auto other = train({0, 0, 0}, [](optim::TrainerOptions& o) {
    o.monitor = "loss";
    o.maximize = false;
    o.patience = 1;
  });
  CHECK_FALSE(other.first);
  CHECK(other.second);
  CHECK(optim::checkpoint_info(run + "/best.safetensors").step == 3);
  const auto reversed = train({0, 0, 0, 0}, [](optim::TrainerOptions& o) { o.monitor = "loss"; });
  CHECK_FALSE(reversed.first);
  CHECK(optim::checkpoint_info(run + "/best.safetensors").step == 4);

  // Checkpoints of earlier versions do not say whose best it is.
  const std::string old = folder.file("old");
  std::filesystem::create_directory(old);
  Scored scored({0.5});
  optim::save_checkpoint(old + "/step-00000001.safetensors", scored.setup.model,
                         scored.setup.optimizer, {.step = 1, .extra = {{"trainer.best", "0.75"}}},
                         nullptr, &scored.setup.loader);
  CHECK(optim::Trainer(scored.setup.model, scored.setup.optimizer, scored.setup.loader,
                       scored.setup.step(), scored.options(old))
            .best() == 0.75);

  // A plateau judges by the same figure.
  const std::string lowered = folder.file("lowered");
  for (const bool maximize : {true, false}) {
    Scored half(maximize ? std::vector<double>{0.5} : std::vector<double>{0.75, 0.75});
    optim::TrainerOptions options = half.options(lowered);
    options.maximize = maximize;
    options.plateau = optim::Plateau{.lr = 0.5, .factor = 0.5, .patience = 0};
    optim::Trainer trainer(half.setup.model, half.setup.optimizer, half.setup.loader,
                           half.setup.step(), options);
    if (!maximize) CHECK(std::isnan(trainer.options().plateau->best));
    trainer.run();
    CHECK(trainer.options().plateau->lr == 0.5);
  }
}

TEST_CASE("Trainer: metrics are averaged by name, over the batches that have them") {
  Setup setup;
  Record record;
  const auto number = [](double value) { return scalar_tensor(value); };
  optim::Trainer trainer(
      setup.model, setup.optimizer, setup.loader,
      with_metrics(setup,
                   [&](int64_t call) -> Metrics {
                     if (call % 2 == 0) return {{"a", number(1)}, {"b", number(2)}};
                     return {{"b", number(4)}, {"c", number(5)}, {"a", number(3)}};
                   }),
      {.steps = 1,
       .accumulate = 2,
       .validate = &setup.valid,  // batches of 8, 8 and 6
       .validation_step = with_metrics(setup, [&](int64_t call) -> Metrics {
         if (call == 0) return {{"rare", number(1)}};
         return {{"all", number(static_cast<double>(call))}};
       })});
  trainer.add(record);
  trainer.run();
  REQUIRE(record.reports.size() == 1);
  CHECK(record.reports[0].metrics == std::map<std::string, double>{{"a", 2}, {"b", 3}, {"c", 5}});
  CHECK(record.reports[0].validation.at("rare") == 1);
  CHECK(record.reports[0].validation.at("all") == doctest::Approx((8 * 1 + 6 * 2) / 14.0));
}

TEST_CASE("Trainer: metrics that are none are errors with their names") {
  const auto one = [] { return scalar_tensor(1.0); };
  struct Case {
    const char* expected;
    Metrics metrics;
  };
  const Case cases[] = {
      {"ValueError: Trainer: expected metrics with distinct names, none of them 'loss', got two "
       "named 'loss'",
       {{"loss", one()}}},
      {"ValueError: Trainer: expected metrics with distinct names, none of them 'loss', got two "
       "named 'a'",
       {{"a", one()}, {"b", one()}, {"a", one()}}},
      {"ShapeError: Trainer: expected one element as metric 'top', got shape [3]",
       {{"top", ones({3})}}},
      {"ValueError: Trainer: expected a tensor as metric 'top', got an undefined one",
       {{"top", Tensor()}}},
  };
  for (const Case& wrong : cases) {
    for (const bool validates : {false, true}) {
      CAPTURE(validates);
      Setup setup;
      const auto step = with_metrics(setup, [&](int64_t) { return wrong.metrics; });
      optim::Trainer trainer(setup.model, setup.optimizer, setup.loader,
                             validates ? setup.step() : step,
                             {.steps = 1,
                              .validate = &setup.valid,
                              .validation_step = validates ? step : optim::StepFunction()});
      CHECK(thrown_by([&] { trainer.run(); }) == wrong.expected);
    }
  }
}

TEST_CASE("Trainer: a validation that a signal ended is made when training is resumed") {
  const TemporaryFolder folder;
  std::map<std::string, double> expected;
  {
    Setup setup;
    manual_seed(6);
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = 4, .validate = &setup.valid});
    trainer.run();
    expected = trainer.validation();
  }
  const auto train = [&](bool interrupted) {
    Setup setup;
    manual_seed(6);
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = 4,
                            .validate = &setup.valid,
                            .validation_step =
                                [&](const nn::data::Batch& batch) {
                                  if (interrupted) std::raise(SIGTERM);
                                  return setup.step()(batch);
                                },
                            .save = folder.file("run"),
                            .keep_best = true,
                            .resume = "auto",
                            .stop_on_signals = true});
    const optim::TrainerEnd end = trainer.run();
    CHECK(end == (interrupted ? optim::TrainerEnd::signal : optim::TrainerEnd::steps));
    CHECK(trainer.step() == 4);
    return trainer.validation();
  };
  CHECK(train(true).empty());
  CHECK(train(false) == expected);
  CHECK(optim::checkpoint_info(folder.file("run/best.safetensors")).step == 4);
}
