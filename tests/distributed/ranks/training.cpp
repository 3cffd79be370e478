#include <doctest/doctest.h>
#include <sash/core/error.h>
#include <sash/nn/data/loader.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/shape/concat.h>
#include <sash/optim/metrics/metric.h>
#include <sash/optim/trainer/trainer.h>
#include <sash/tensor/distributed/group.h>
#include <sash/tensor/random.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "../../support/small_training.h"

using namespace sash;
using distributed::Group;
using distributed::ReduceOp;
using distributed::world;

namespace {

// Samples 0, 1, ..., whose element is their number.
nn::data::TensorDataset numbers(int64_t count) {
  return nn::data::TensorDataset({arange(0, count, 1, {.dtype = DType::int64, .device = kCPU})});
}

std::vector<int64_t> samples_of(const nn::data::Batch& batch) {
  return batch[0].to(kCPU).to_vector<int64_t>();
}

// How often each sample was taken, by all ranks.
std::vector<int64_t> taken(const std::vector<int64_t>& here, int64_t count) {
  std::vector<int64_t> times(static_cast<size_t>(count));
  for (const int64_t sample : here) ++times[static_cast<size_t>(sample)];
  const Tensor all = tensor(times, {count}).to(default_device());
  world().all_reduce(all);
  return all.to(kCPU).to_vector<int64_t>();
}

// A folder that all ranks know.
std::string shared_folder(const char* name) {
  const char* const job = std::getenv("PMIX_NAMESPACE");
  const auto path = std::filesystem::temp_directory_path() /
                    ("sash_ranks_" + std::string(job ? job : std::getenv("MASTER_PORT")) + name);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(path);
  world().barrier();
  return path.string();
}

nn::Sequential make_net() {
  manual_seed(3);
  return nn::Sequential(nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 2));
}

struct Run {
  std::vector<double> weights;
  std::map<std::string, double> validation;
  optim::TrainerEnd end;
  int64_t step;
};

struct Plan {
  Group group{};
  int64_t steps = 6, accumulate = 1, batch = 2;
  std::string save{}, resume{};
  bool weighted = false, shard = false;
  int64_t stop_at = -1;  // of the last rank
};

Run train(const Plan& plan) {
  nn::Sequential model = make_net();
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  nn::data::Loader loader(
      testing::samples(),
      {.batch = plan.batch, .shuffle = true, .drop_last = true, .seed = 9, .group = plan.group});
  nn::data::Loader valid(testing::samples(), {.batch = 3, .group = plan.group});
  optim::Trainer* running = nullptr;
  const auto step = [&](const nn::data::Batch& batch) -> optim::StepOutput {
    const bool last = plan.group.rank() == plan.group.size() - 1;
    if (model.is_training() && last && running->step() == plan.stop_at) running->stop();
    const Tensor loss = cross_entropy(model(batch[0]), batch[1]);
    const Tensor right = eq(argmax(model(batch[0]), 1), batch[1]).to(DType::float32).mean();
    if (!plan.weighted) return {loss, {{"accuracy", right}}};
    return {loss, {{"accuracy", right}}, 1 + batch[1].to(kCPU).to_vector<int64_t>()[0]};
  };
  optim::Trainer trainer(model, optimizer, loader, step,
                         {.steps = plan.steps,
                          .accumulate = plan.accumulate,
                          .max_grad_norm = 1,
                          .group = plan.group,
                          .shard = plan.shard,
                          .check_every = 2,
                          .validate = &valid,
                          .validate_every = 3,
                          .save = plan.save,
                          .save_every = plan.save.empty() ? 0 : 3,
                          .resume = plan.resume});
  running = &trainer;
  const optim::TrainerEnd end = trainer.run();
  Run run{{}, trainer.validation(), end, trainer.step()};
  for (const Tensor& p : model.parameters()) {
    const auto part = p.detach().to(DType::float64).to(kCPU).to_vector<double>();
    run.weights.insert(run.weights.end(), part.begin(), part.end());
  }
  return run;
}

void check_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  CHECK(most <= tolerance);
}

}  // namespace

TEST_CASE("ranks: a loader's ranks share an epoch, and nothing is lost or taken twice") {
  const Group all = world();
  const int64_t ranks = all.size();
  for (const int64_t count : {ranks, 3 * ranks, 6 * ranks + 1, 8 * ranks - 1, int64_t{100}}) {
    CAPTURE(count);
    nn::data::Loader loader(numbers(count), {.batch = 3, .shuffle = true, .group = all});
    const auto batches = static_cast<double>(loader.size());
    CHECK(all.all_reduce(batches, ReduceOp::min) == all.all_reduce(batches, ReduceOp::max));
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::vector<int64_t> here;
      for (const nn::data::Batch& batch : loader) {
        const std::vector<int64_t> samples = samples_of(batch);
        here.insert(here.end(), samples.begin(), samples.end());
      }
      CHECK(taken(here, count) == std::vector<int64_t>(static_cast<size_t>(count), 1));
    }
  }
}

TEST_CASE("ranks: a rank takes each size-th batch of a loader without a group") {
  const Group all = world();
  nn::data::Loader shared(numbers(50 * all.size()), {.batch = 2, .shuffle = true, .group = all});
  nn::data::Loader alone(numbers(50 * all.size()), {.batch = 2, .shuffle = true});
  for (int64_t i = 0; i < shared.size(); ++i) {
    const std::vector<int64_t> here = samples_of(*shared.next());
    for (int r = 0; r < all.size(); ++r) {
      const std::vector<int64_t> one = samples_of(*alone.next());
      if (r == all.rank()) CHECK(one == here);
    }
  }
}

TEST_CASE("ranks: a loader goes on with another number of ranks") {
  const Group all = world();
  const int64_t count = 40 * all.size();
  nn::data::Loader shared(numbers(count), {.batch = 2, .shuffle = true, .seed = 5, .group = all});
  std::vector<int64_t> here;
  for (int i = 0; i < 7; ++i) {
    const std::vector<int64_t> samples = samples_of(*shared.next());
    here.insert(here.end(), samples.begin(), samples.end());
  }
  nn::data::Loader alone(numbers(count), {.batch = 2, .shuffle = true, .seed = 5});
  alone.load_state(shared.state());
  CHECK(alone.position() == 7 * all.size());
  if (all.rank() == 0) {
    while (const auto batch = alone.next()) {
      const std::vector<int64_t> samples = samples_of(*batch);
      here.insert(here.end(), samples.begin(), samples.end());
    }
  }
  CHECK(taken(here, count) == std::vector<int64_t>(static_cast<size_t>(count), 1));

  nn::data::Loader back(numbers(count), {.batch = 2, .shuffle = true, .seed = 5, .group = all});
  alone.load_state(shared.state());
  back.load_state(alone.state());
  CHECK(back.position() == 7);
  alone.next();  // now between two batches of the ranks
  CHECK_THROWS_AS(back.load_state(alone.state()), ValueError);
  CHECK(back.position() == 7);
}

TEST_CASE("ranks: a trainer of a group is one that accumulates") {
  const Group all = world();
  for (const bool weighted : {false, true}) {
    CAPTURE(weighted);
    // All in the first epoch, of which the ranks drop other samples.
    const Run alone =
        train({.steps = 5, .accumulate = all.size(), .batch = 1, .weighted = weighted});
    const Run together = train({.group = all, .steps = 5, .batch = 1, .weighted = weighted});
    const Run shared =
        train({.group = all, .steps = 5, .batch = 1, .weighted = weighted, .shard = true});
    check_close(shared.weights, together.weights, 1e-5);
    const bool power_of_two = (all.size() & (all.size() - 1)) == 0;
    const bool same_bits = default_device().is_cpu() && !weighted && power_of_two;
    check_close(together.weights, alone.weights, same_bits ? 0 : 1e-5);
    if (weighted) continue;  // by the first label of a batch, and batches of validations differ
    CHECK(together.validation.at("loss") ==
          doctest::Approx(alone.validation.at("loss")).epsilon(1e-5));
    CHECK(together.validation.at("accuracy") ==
          doctest::Approx(alone.validation.at("accuracy")).epsilon(1e-5));
  }
}

TEST_CASE("ranks: a trainer's checkpoints are rank 0's, and all go on from them") {
  const Group all = world();
  const std::string folder = shared_folder("checkpoints");
  const Run whole = train({.group = all, .steps = 4, .batch = 1});
  const Run first = train({.group = all, .steps = 2, .batch = 1, .save = folder});
  all.barrier();
  const Run second =
      train({.group = all, .steps = 4, .batch = 1, .save = folder, .resume = "auto"});
  check_close(second.weights, whole.weights, 0);
  all.barrier();
  // One process goes on, too.
  const Run alone = train({.steps = 5, .accumulate = all.size(), .batch = 1, .resume = folder});
  const Run five = train({.group = all, .steps = 5, .batch = 1});
  check_close(alone.weights, five.weights, 1e-5);
  all.barrier();
  if (all.rank() == 0) std::filesystem::remove_all(folder);
}

TEST_CASE("ranks: if one rank stops, all stop after the same step") {
  const Group all = world();
  const Run run = train({.group = all, .steps = 10, .stop_at = 4});
  CHECK(run.end == optim::TrainerEnd::stopped);
  CHECK(run.step == 5);
}

TEST_CASE("ranks: a trainer gives each rank its own random numbers, and rank 0 those it had") {
  const Group all = world();
  manual_seed(11);
  const double expected = randn({}).item<double>();
  manual_seed(11);
  nn::Sequential model = make_net();
  manual_seed(11);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  nn::data::Loader loader(testing::samples(), {.batch = 2, .group = all});
  optim::Trainer trainer(model, optimizer, loader,
                         [&](const nn::data::Batch& batch) -> optim::StepOutput {
                           return cross_entropy(model(batch[0]), batch[1]);
                         },
                         {.steps = 1, .group = all});
  const double here = randn({}).item<double>();
  CHECK((here == expected) == (all.rank() == 0));
}

TEST_CASE("ranks: metrics count the rows of all ranks") {
  // Rank r has 3 r rows, of 0, 1, ... over all ranks.
  const int64_t rank = world().rank(), size = world().size();
  optim::Accuracy accuracy, all_accuracy;
  optim::F1 f1(3), all_f1(3);
  optim::AUC auc, all_auc;
  optim::R2 r2, all_r2;
  optim::Perplexity perplexity, all_perplexity;
  const auto update = [](auto& class_metrics, optim::AUC& area, optim::R2& regression,
                         optim::Perplexity& language, int64_t first, int64_t count) {
    if (count == 0) return;
    const Tensor row = arange(first, first + count, 1, {.dtype = DType::int64});
    const Tensor target = remainder(row * 5 + 1, 3), predicted = remainder(row, 3);
    for (optim::Metric* const metric : class_metrics) metric->update(predicted, target);
    const Tensor score = remainder(row * 7, 5).to(DType::float32);
    area.update(score, remainder(row, 2));
    regression.update(score, score + target.to(DType::float32));
    language.update(stack({score, score * 0.5, -score}, 1), target);
  };
  const std::vector<optim::Metric*> own{&accuracy, &f1}, all{&all_accuracy, &all_f1};
  int64_t first = 0;
  for (int64_t r = 0; r < size; first += 3 * r++) {
    if (r == rank) update(own, auc, r2, perplexity, first, 3 * r);
    update(all, all_auc, all_r2, all_perplexity, first, 3 * r);
  }
  const std::vector<std::pair<optim::Metric*, optim::Metric*>> pairs{
      {&accuracy, &all_accuracy},
      {&f1, &all_f1},
      {&auc, &all_auc},
      {&r2, &all_r2},
      {&perplexity, &all_perplexity}};
  for (const auto& [part, whole] : pairs) {
    if (size == 1) break;  // no rows
    part->sum_ranks(world());
    CHECK(part->compute() == doctest::Approx(whole->compute()).epsilon(1e-6));
  }
}
