// What trainers share: an optimizer, a validation loader, folders of checkpoints.
#include <memory>

#include <doctest/doctest.h>

#include "../support/small_training.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE("Trainer: one that is made anew clips as the first did") {
  Setup once, anew;
  const optim::TrainerOptions options{.steps = 5, .max_grad_norm = 0.01};
  manual_seed(5);
  optim::Trainer(once.model, once.optimizer, once.loader, once.step(), options).run();
  const auto make = [&] {
    return std::make_unique<optim::Trainer>(anew.model, anew.optimizer, anew.loader, anew.step(),
                                            options);
  };
  auto trainer = make();
  trainer = make();
  manual_seed(5);
  trainer->run();
  CHECK(anew.weights() == once.weights());
  CHECK(anew.optimizer.max_grad_norm() == 0);
}

TEST_CASE("Trainer: validates the whole of a loader that was read from") {
  Setup fresh, read;
  read.valid.next();
  const auto validation = [](Setup& setup) {
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = 1, .validate = &setup.valid});
    const auto first = trainer.validate();
    CHECK(trainer.validate() == first);
    return first;
  };
  CHECK(validation(read) == validation(fresh));
}

TEST_CASE("Trainer: resumed from another folder, it fills its own") {
  const TemporaryFolder folder;
  const std::string first = folder.file("first"), second = folder.file("second");
  const auto run = [&](const std::string& save, const std::string& resume, int64_t steps) {
    Setup setup;
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = steps,
                            .validate = &setup.valid,
                            .validate_every = 2,
                            .save = save,
                            .keep = 1,
                            .keep_best = true,
                            .resume = resume});
    trainer.run();
    return trainer.best().has_value();
  };
  CHECK(run(first, "", 4));
  CHECK_FALSE(run(second, first, 4));  // the best is not in this folder
  CHECK(names_in(second) == Names{"step-00000004.safetensors"});
  CHECK(run(second, second, 6));
  CHECK(names_in(second) == Names{"best.safetensors", "step-00000006.safetensors"});
}
