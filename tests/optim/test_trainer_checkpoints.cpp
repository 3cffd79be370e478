// Checkpoints of optim::Trainer: resumed runs, what stays in the folder, folders that cannot be
// written. And find_lr, which leaves a training as it was.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <type_traits>

#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/sgd.h>
#include <sash/optim/trainer/checkpoint_folder.h>
#include <sash/optim/trainer/find_lr.h>

#include "../support/small_training.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;
namespace fs = std::filesystem;

TEST_CASE("Trainer: a resumed run has the bits of one run, and the best of its validations") {
  const TemporaryFolder folder;
  const auto options = [&](const std::string& name, int64_t steps) {
    return optim::TrainerOptions{.steps = steps,
                                 .schedule = kSchedule,
                                 .save = folder.file(name),
                                 .save_every = 2,
                                 .keep = 2,
                                 .keep_best = true,
                                 .resume = "auto"};
  };
  const auto train = [&](const std::string& name, int64_t steps, int64_t stop_at, Record& record,
                         Setup& setup) {
    optim::TrainerOptions chosen = options(name, steps);
    chosen.validate = &setup.valid;
    chosen.validate_every = 4;
    manual_seed(8);
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(), chosen);
    record.then = [&](const optim::StepReport& report) {
      if (report.step == stop_at) trainer.stop();
    };
    trainer.add(record);
    CHECK(trainer.run() == (stop_at > 0 ? optim::TrainerEnd::stopped : optim::TrainerEnd::steps));
    record.then = {};
    return trainer.best();
  };
  Setup whole, first, second;
  Record all, start, rest;
  const auto best = train("whole", 15, 0, all, whole);
  train("parts", 15, 7, start, first);
  second.model.parameters()[0].detach().zero_();  // the checkpoint has it
  CHECK(train("parts", 15, 0, rest, second) == best);
  CHECK(rest.started_at == 7);
  std::vector<double> losses = start.losses();
  for (const double loss : rest.losses()) losses.push_back(loss);
  CHECK(losses == all.losses());
  CHECK(second.weights() == whole.weights());
  const auto text = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  for (const char* file : {"step-00000015.safetensors", "best.safetensors"}) {
    const std::string one = text(folder.file("whole/" + std::string(file)));
    CHECK(one == text(folder.file("parts/" + std::string(file))));
    CHECK(one.size() > 100);
  }
  const Names names{"best.safetensors", "step-00000014.safetensors", "step-00000015.safetensors"};
  CHECK(names_in(folder.file("parts")) == names);
  CHECK(optim::newest_checkpoint(folder.file("parts")) ==
        folder.file("parts/step-00000015.safetensors"));

  Setup third;
  check_error<ValueError>(
      [&] {
        optim::Trainer trainer(third.model, third.optimizer, third.loader, third.step(),
                               {.steps = 1, .save = folder.file("parts")});
      },
      "resume from it (resume = \"auto\") to continue that run, or save to another folder");
}

TEST_CASE("Trainer: a plateau lowers the rate, and a resumed run goes on with its state") {
  static_assert(!std::is_constructible_v<optim::Schedule, optim::Plateau>);
  const TemporaryFolder folder;
  const auto rates = [&](const std::string& name, int64_t stop_at) {
    Setup setup;
    Record record;
    optim::Trainer trainer(
        setup.model, setup.optimizer, setup.loader, setup.step(),
        {.steps = 20,
         .validate = &setup.valid,
         .validate_every = 1,
         .plateau = optim::Plateau{.lr = 1e-2, .factor = 0.5, .patience = 2, .threshold = 0.3},
         .save = folder.file(name),
         .resume = "auto"});
    record.then = [&](const optim::StepReport& report) {
      if (report.step == stop_at) trainer.stop();
    };
    trainer.add(record);
    trainer.run();
    std::vector<double> lr;
    for (const optim::StepReport& report : record.reports) lr.push_back(report.lr);
    return lr;
  };
  const std::vector<double> whole = rates("whole", 0);
  CHECK(whole.front() == 1e-2);
  CHECK(whole.back() < 3e-3);  // lowered twice or more
  for (const int64_t stop_at : {4, 5, 6, 7}) {
    CAPTURE(stop_at);
    const std::string name = "parts" + std::to_string(stop_at);
    std::vector<double> parts = rates(name, stop_at);
    const std::vector<double> rest = rates(name, 0);
    parts.insert(parts.end(), rest.begin(), rest.end());
    CHECK(parts == whole);
  }
  Setup setup;
  check_error<ValueError>(
      [&] {
        optim::Trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                       {.steps = 1, .plateau = optim::Plateau{}});
      },
      "expected validate and validate_every with plateau, got none");
  check_error<ValueError>(
      [&] {
        optim::Trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                       {.steps = 1,
                        .schedule = kSchedule,
                        .validate = &setup.valid,
                        .validate_every = 1,
                        .plateau = optim::Plateau{}});
      },
      "expected a schedule or a plateau, got both");
}

TEST_CASE(
    "Trainer: a run that ended between the last step's best and its own file saves the file") {
  const TemporaryFolder folder;
  const auto train = [&] {
    Setup setup;
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = 6,
                            .validate = &setup.valid,
                            .save = folder.file("run"),
                            .keep_best = true,
                            .resume = "auto"});
    CHECK(trainer.run() == optim::TrainerEnd::steps);
  };
  const std::string last = folder.file("run/step-00000006.safetensors");
  const auto text = [&] {
    std::ifstream file(last, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  train();
  const std::string before = text();
  CHECK(optim::checkpoint_info(folder.file("run/best.safetensors")).step == 6);
  fs::remove(last);
  train();
  CHECK(fs::exists(last));
  CHECK(text() == before);
}

TEST_CASE("Trainer: patience ends a training, and the best stays") {
  const TemporaryFolder folder;
  Setup setup;
  setup.optimizer.set_lr(0);  // nothing gets better
  Record record;
  const auto options = [&](Setup& of) {
    return optim::TrainerOptions{.steps = 100,
                                 .validate = &of.valid,
                                 .validate_every = 2,
                                 .monitor = "accuracy",
                                 .maximize = true,
                                 .patience = 3,
                                 .save = folder.file("run"),
                                 .keep_best = true,
                                 .resume = "auto"};
  };
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(), options(setup));
  trainer.add(record);
  CHECK(trainer.run() == optim::TrainerEnd::patience);
  CHECK(trainer.step() == 8);
  CHECK(optim::checkpoint_info(folder.file("run/best.safetensors")).step == 2);
  CHECK(trainer.best() == record.reports[1].validation.at("accuracy"));

  Setup again;
  optim::Trainer resumed(again.model, again.optimizer, again.loader, again.step(), options(again));
  CHECK(resumed.step() == 8);
  CHECK(resumed.run() == optim::TrainerEnd::patience);
  CHECK(resumed.step() == 8);
}

TEST_CASE("Trainer: a folder that vanishes is a warning, then an error, and nothing else is lost") {
  const TemporaryFolder folder;
  Setup setup;
  Record record;
  record.then = [&](const optim::StepReport& report) {
    if (report.step == 3) fs::remove_all(folder.file("run"));
  };
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 6, .save = folder.file("run"), .save_every = 2});
  trainer.add(record);
  const std::string text = message_of<IoError>([&] { trainer.run(); });
  CHECK_MESSAGE(text.find("cannot create '" + folder.file("run")) != std::string::npos, text);
  REQUIRE(record.warnings.size() == 1);
  CHECK(record.warnings[0].find("step 4 is not saved") == 0);
  CHECK(trainer.step() == 6);
  trainer.save(folder.file("elsewhere"));
  CHECK(optim::checkpoint_info(folder.file("elsewhere")).step == 6);
}

TEST_CASE("Trainer: an error of on_save is its own, and the file counts as saved") {
  struct Throwing : optim::Callback {
    void on_save(const std::string& path, int64_t step) override {
      if (step == 4 && path.find("best") == path.npos) throw IoError("Uploader", "no network");
    }
  };
  const TemporaryFolder folder;
  Setup setup;
  Record record;
  Throwing throwing;
  optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                         {.steps = 6, .save = folder.file("run"), .save_every = 2});
  trainer.add(record);
  trainer.add(throwing);
  const std::string text = message_of<IoError>([&] { trainer.run(); });
  CHECK_MESSAGE(text.find("Uploader: no network") == 0, text);
  CHECK(record.warnings.empty());
  CHECK(trainer.saved_step() == 4);
  CHECK(names_in(folder.file("run")) == Names{"step-00000004.safetensors"});
}

TEST_CASE("Trainer: one file of checkpoints replaces no other file") {
  const TemporaryFolder folder;
  const std::string path = folder.file("thesis.txt");
  const auto train = [&](const char* resume) {
    Setup setup;
    optim::Trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                   {.steps = 1, .save = path, .keep = 0, .resume = resume})
        .run();
  };
  std::ofstream(path) << "Chapter 1";
  for (const char* resume : {"", "auto"}) {
    check_error<ValueError>([&] { train(resume); },
                            "Trainer: expected a checkpoint or no file to replace, got '" + path);
  }
  std::string kept;
  std::getline(std::ifstream(path), kept);
  CHECK(kept == "Chapter 1");
  std::ofstream(path, std::ios::trunc).close();  // an empty file is nobody's loss
  train("");
  train("");
  CHECK(optim::checkpoint_info(path).step == 1);
}

TEST_CASE("Trainer: what cannot be written to is refused before the first step") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("file")) << "text";
  for (const std::string& path : {folder.file("file/run"), std::string("/proc/run")}) {
    CAPTURE(path);
    Setup setup;
    CHECK_THROWS_AS(optim::Trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                                   {.steps = 6, .save = path}),
                    IoError);
  }
  Setup setup;
  CHECK_THROWS_AS(optim::Trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                                 {.steps = 6, .save = "/dev/full", .keep = 0}),
                  IoError);
}

TEST_CASE("Trainer: a folder that cannot be looked at is an error, not one without checkpoints") {
  const TemporaryFolder folder;
  const auto thrown = [](const std::string& path) {
    CAPTURE(path);
    Setup setup;
    const std::string text = message_of<IoError>([&] {
      optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                             {.steps = 1, .save = path, .resume = "auto"});
    });
    CHECK(text == message_of<IoError>([&] { optim::newest_checkpoint(path); }));
    CHECK_MESSAGE(text.find("newest_checkpoint: cannot read '" + path) == 0, text);
  };
  CHECK(!optim::newest_checkpoint(folder.file("none")));
  CHECK(!optim::newest_checkpoint("/dev/null"));
  thrown(folder.file(std::string(300, 'a')));
  fs::create_symlink("loop", folder.file("loop"));
  thrown(folder.file("loop"));
  const std::string run = folder.file("run");
  fs::create_directory(run);
  fs::create_symlink("best.safetensors", run + "/best.safetensors");
  thrown(run);
  fs::permissions(run, fs::perms::others_exec | fs::perms::owner_exec);
  fs::permissions(folder.file(""), fs::perms::others_exec, fs::perm_options::add);
  struct NotRoot {  // who may read everything
    const bool was_root = ::geteuid() == 0;
    const bool done = !was_root || ::seteuid(65534) == 0;
    ~NotRoot() { CHECK((!was_root || ::seteuid(0) == 0)); }
  };
  {
    const NotRoot nobody;
    if (nobody.done) thrown(run);
  }
  fs::permissions(run, fs::perms::owner_all);
}

TEST_CASE("Trainer: leftovers of killed writers are removed, and never taken for a checkpoint") {
  const TemporaryFolder folder;
  const std::string run = folder.file("run");
  const auto train = [&](int64_t steps) {
    Setup setup;
    optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                           {.steps = steps, .save = run, .keep = 9, .resume = "auto"});
    const int64_t start = trainer.step();
    trainer.run();
    return start;
  };
  CHECK(train(2) == 0);
  std::ofstream(run + "/step-00000009.safetensors.tmp.999999999.0") << "half";
  std::ofstream(run + "/step-00000008.safetensors") << "half";
  std::ofstream(run + "/notes.tmp.999999999.0") << "the user's own";
  CHECK(train(3) == 2);
  const Names names{"notes.tmp.999999999.0", "step-00000002.safetensors",
                    "step-00000003.safetensors", "step-00000008.safetensors"};
  CHECK(names_in(run) == names);
}

TEST_CASE("Trainer: nothing of a checkpoint with a wrong figure is loaded") {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.safetensors");
  for (const char* text : {"good", "0.5 or so", ""}) {
    Setup saved, setup;
    saved.loader.next();
    optim::save_checkpoint(path, saved.model, saved.optimizer,
                           {.step = 3, .extra = {{"trainer.best", text}}}, nullptr, &saved.loader);
    setup.model.parameters()[0].detach().zero_();
    setup.optimizer.set_lr(0.5);
    manual_seed(77);
    const auto weights = setup.weights();
    const std::string place = setup.loader.state();
    const RandomState random = random_state();
    check_error<FormatError>(
        [&] {
          optim::Trainer trainer(setup.model, setup.optimizer, setup.loader, setup.step(),
                                 {.steps = 5, .resume = path});
        },
        "a number as 'trainer.best'");
    CHECK(setup.weights() == weights);
    CHECK(setup.optimizer.lr() == 0.5);
    CHECK(setup.loader.state() == place);
    CHECK(random_state() == random);
  }
}

TEST_CASE("find_lr: suggests a rate at which the loss falls") {
  manual_seed(2);
  nn::Sequential model(nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 2));
  optim::SGD optimizer(model.parameters(), {.lr = 0});
  nn::data::Loader loader(samples(), {.batch = 22});
  const auto step = [&](const nn::data::Batch& batch) {
    return cross_entropy(model(batch[0]), batch[1]);
  };
  const double lr = optim::find_lr(model, optimizer, loader, step).suggestion;
  CHECK(lr > 1e-3);
  CHECK(lr <= 1);
  Record record;
  optim::Trainer trainer(model, optimizer, loader, step,
                         {.steps = 20, .schedule = optim::Constant{.lr = lr}});
  trainer.add(record);
  trainer.run();
  CHECK(record.losses().back() < 0.7 * record.losses().front());
}

TEST_CASE("find_lr: leaves everything as it was") {
  Setup setup, other;
  const auto train = [](Setup& of, int64_t steps) {
    manual_seed(4);
    optim::Trainer(of.model, of.optimizer, of.loader, of.step(), {.steps = steps}).run();
  };
  const auto find = [](Setup& of) {
    return optim::find_lr(of.model, of.optimizer, of.loader, of.step(),
                          {.min_lr = 1e-6, .max_lr = 10, .steps = 40});
  };
  const optim::FoundLr found = find(setup);
  CHECK(found.lr.size() == found.loss.size());
  CHECK(found.lr.at(0) == 1e-6);
  train(setup, 5);
  train(other, 5);
  CHECK(setup.weights() == other.weights());
  CHECK(find(setup).lr.size() >= 4);  // also in the midst of a training
  train(setup, 10);
  train(other, 10);
  CHECK(setup.weights() == other.weights());
  check_error<ValueError>(
      [&] {
        optim::find_lr(setup.model, setup.optimizer, setup.loader, setup.step(), {.steps = 2});
      },
      "steps of at least 3");
}

TEST_CASE("find_lr: suggests the same again, and leaves rates and random state") {
  Setup setup;
  const auto find = [&] {
    return optim::find_lr(setup.model, setup.optimizer, setup.loader, setup.step(),
                          {.min_lr = 1e-6, .max_lr = 10, .steps = 40});
  };
  const RandomState random = random_state();
  const optim::FoundLr first = find(), second = find();
  CHECK(first.loss == second.loss);
  CHECK(first.suggestion == second.suggestion);
  CHECK(setup.optimizer.lr() == 1e-2);
  CHECK(random_state() == random);
}

TEST_CASE("find_lr: a first loss that is not finite is an error, and all is as it was") {
  Setup setup;
  const std::vector<double> weights = setup.weights();
  const std::string place = setup.loader.state();
  const RandomState random = random_state();
  const auto step = [&](const nn::data::Batch& batch) -> optim::StepOutput {
    return setup.step()(batch).loss * std::nan("");
  };
  check_error<ValueError>([&] { optim::find_lr(setup.model, setup.optimizer, setup.loader, step); },
                          "find_lr: expected a finite loss at the first step, got nan");
  CHECK(setup.weights() == weights);
  CHECK(setup.loader.state() == place);
  CHECK(random_state() == random);
  CHECK(setup.optimizer.lr() == 1e-2);
}

TEST_CASE("find_lr: losses below 0 do not end it") {
  Setup setup;
  const auto step = [&](const nn::data::Batch& batch) -> optim::StepOutput {
    return setup.step()(batch).loss - 10;
  };
  const optim::FoundLr found =
      optim::find_lr(setup.model, setup.optimizer, setup.loader, step, {.steps = 30});
  CHECK(found.lr.size() == 30);
}

TEST_CASE("find_lr: leaves modes and gradients, those that are not the optimizer's too") {
  Setup setup;
  setup.model[2].eval();
  optim::SGD optimizer(setup.model[3].parameters());
  std::vector<Tensor> parameters = setup.model.parameters();
  for (const size_t i : {size_t{0}, size_t{3}}) parameters[i].set_grad(ones(parameters[i].shape()));
  optim::find_lr(setup.model, optimizer, setup.loader, setup.step(), {.steps = 5});
  CHECK(setup.model.is_training());
  CHECK_FALSE(setup.model[2].is_training());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = parameters[i].grad();
    CHECK(gradient.defined() == (i == 0 || i == 3));
    if (!gradient.defined()) continue;
    for (const double value : gradient.to_vector<double>()) CHECK(value == 1);
  }
}

TEST_CASE("find_lr: leaves buffers that are not saved, too") {
  struct Counting : nn::Module {
    nn::Linear& layer = register_module<nn::Linear>("layer", 4, 2);
    Tensor calls = register_buffer("calls", zeros({}), false);
    Tensor forward(const Tensor& x) override {
      calls.add_(1);
      return layer(x);
    }
  };
  Setup setup;
  Counting model;
  model.calls.fill_(7);
  optim::SGD optimizer(model.parameters());
  const auto step = [&](const nn::data::Batch& batch) {
    return cross_entropy(model(batch[0]), batch[1]);
  };
  optim::find_lr(model, optimizer, setup.loader, step, {.steps = 5});
  CHECK(model.calls.item<double>() == 7);
}

TEST_CASE("find_lr: a loader that cannot go back is an error") {
  Setup setup;
  int calls = 0;
  nn::data::Loader loader(samples(), {.sampler = [&](Generator&) {
                            if (++calls > 1) throw IoError("sampler", "no samples");
                            return std::vector<std::vector<int64_t>>(9, {1, 2, 3});
                          }});
  const std::vector<double> weights = setup.weights();
  check_error<IoError>(
      [&] { optim::find_lr(setup.model, setup.optimizer, loader, setup.step(), {.steps = 5}); },
      "no samples");
  CHECK(calls == 2);
  CHECK(setup.weights() == weights);
}
