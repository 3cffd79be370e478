// Scaled losses: steps that are skipped on the device, and the scale that follows from them.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <sash/core/error.h>
#include <sash/nn/layers/linear.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/grad_scaler.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double tracker_of(const optim::GradScaler& scaler) {
  return find(scaler.state_dict(), "growth_tracker")->item<double>();
}

}  // namespace

TEST_CASE_TEMPLATE("GradScaler: a scaled step is the plain one", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  const TensorOptions on{.device = On::device};
  Tensor p = randn({301}, on).requires_grad_();
  Tensor q = p.detach().clone().requires_grad_();
  const Tensor x = randn({301}, on);
  optim::AdamW scaled({p}, {.max_grad_norm = 1e9}), plain({q});
  optim::GradScaler scaler;
  for (int step = 0; step < 3; ++step) {
    scaled.zero_grad();
    plain.zero_grad();
    const Tensor loss = scaler.scale((p * x).sum());
    CHECK(loss.item<double>() == doctest::Approx(65536 * (p * x).sum().item<double>()));
    loss.backward();
    (q * x).sum().backward();
    scaler.step(scaled);
    scaler.update();
    plain.step();
    CHECK(all_same(p.detach(), q.detach()));
    CHECK(scaled.grad_norm().item<double>() ==
          doctest::Approx(std::sqrt((x * x).sum().item<double>())));
  }
  CHECK(tracker_of(scaler) == 3);
  CHECK(scaler.get_scale() == 65536);
}

TEST_CASE_TEMPLATE("GradScaler: a step with NaN or infinity changes nothing but the scale", On, Cpu,
                   Cuda) {
  if (missing(On::device)) return;
  const DType half = DType::float16;
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    Tensor p = ones({40}, {.dtype = half, .device = On::device}).requires_grad_();
    Tensor q = ones({40}, {.device = On::device}).requires_grad_();
    optim::AdamW adamw({p}, {.master_weights = true});
    optim::SGD sgd({q}, {.momentum = 0.9});
    optim::GradScaler scaler({.init_scale = 8, .growth_interval = 3});
    scaler.scale(ones({}, {.device = On::device}));
    const auto step = [&](double last) {
      Tensor g = ones({40}, {.dtype = half, .device = On::device});
      g[39] = last;
      p.set_grad(g);
      q.set_grad(ones({40}, {.device = On::device}));
      scaler.step(adamw);
      scaler.step(sgd);
      scaler.update();
    };
    step(1);
    const Tensor before = p.detach().clone(), other = q.detach().clone();
    const Tensor moment = find(adamw.state_dict(), "state.0.exp_avg")->clone();
    step(bad);
    CHECK(all_same(p.detach(), before));
    CHECK(all_same(*find(adamw.state_dict(), "state.0.exp_avg"), moment));
    CHECK(find(adamw.state_dict(), "state.0.step")->item<int64_t>() == 1);
    CHECK(find(sgd.state_dict(), "state.0.step")->item<int64_t>() == 2);
    CHECK_FALSE(all_same(q.detach(), other));
    CHECK(scaler.get_scale() == 4);
    CHECK(tracker_of(scaler) == 0);
    for (int i = 0; i < 3; ++i) step(1);
    CHECK(scaler.get_scale() == 8);
    CHECK(tracker_of(scaler) == 0);
    CHECK(find(adamw.state_dict(), "state.0.step")->item<int64_t>() == 4);
  }
}

TEST_CASE_TEMPLATE("GradScaler: a scale does not grow to infinity", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  Tensor p = ones({2}, {.dtype = DType::float64, .device = On::device}).requires_grad_();
  optim::SGD sgd({p});
  optim::GradScaler scaler({.init_scale = 1e308, .growth_interval = 1});
  for (int i = 0; i < 2; ++i) {
    sgd.zero_grad();
    scaler.scale(p.sum() * 0).backward();
    scaler.step(sgd);
    scaler.update();
    CHECK(scaler.get_scale() == 1e308);
    CHECK(tracker_of(scaler) == 0);
  }
}

TEST_CASE("GradScaler: its state is saved in checkpoints") {
  manual_seed(2);
  const TemporaryFolder folder;
  const std::string path = folder.file("model");
  nn::Linear model(3, 2);
  optim::AdamW adamw(model.parameters());
  optim::GradScaler scaler({.init_scale = 32});
  const auto step = [&] {
    adamw.zero_grad();
    scaler.scale(mse_loss(model(ones({1, 3})), zeros({1, 2}))).backward();
    scaler.step(adamw);
    scaler.update();
  };
  step();
  step();
  optim::save_checkpoint(path, model, adamw, {.step = 2}, &scaler);
  step();
  optim::GradScaler loaded;
  optim::load_checkpoint(path, model, adamw, &loaded);
  CHECK(loaded.get_scale() == 32);
  CHECK(tracker_of(loaded) == 2);
  CHECK(
      thrown_by([&] { optim::load_checkpoint(path, model, adamw); })
          .starts_with("ValueError: load_checkpoint: expected a GradScaler, as when it was saved, "
                       "got none"));
  optim::save_checkpoint(path, model, adamw, {.step = 2});
  CHECK(thrown_by([&] {
          optim::load_checkpoint(path, model, adamw, &loaded);
        }).starts_with("ValueError: GradScaler.load_state_dict: missing scale, growth_tracker"));
  CHECK(loaded.get_scale() == 32);
}

TEST_CASE("GradScaler: a step of each optimizer, then one update") {
  Tensor p = ones({2}).requires_grad_(), q = ones({2}).requires_grad_();
  optim::SGD first({p}), second({q});
  optim::GradScaler scaler({.init_scale = 8});
  const std::string no_update =
      "ValueError: GradScaler.step: expected an update since this optimizer's last step, got none";
  const std::string no_step =
      "ValueError: GradScaler.update: expected a step since the last update, got none";
  CHECK(thrown_by([&] { scaler.update(); }) == no_step);
  scaler.scale(p.sum() + q.sum()).backward();
  for (int round = 0; round < 2; ++round) {
    scaler.step(first);
    CHECK(thrown_by([&] { scaler.step(first); }) == no_update);
    scaler.step(second);
    scaler.update();
    CHECK(thrown_by([&] { scaler.update(); }) == no_step);
  }
  CHECK(tracker_of(scaler) == 2);
  scaler.step(first);
  scaler.load_state_dict(scaler.state_dict());
  scaler.step(first);
}

TEST_CASE("wrong calls: GradScaler") {
  const auto make = [](optim::GradScalerOptions options) {
    return [options] { optim::GradScaler scaler(options); };
  };
  const auto load = [](double scale, double growth_tracker = 0) {
    return [scale, growth_tracker] {
      optim::GradScaler().load_state_dict(
          {{"scale", scalar_tensor(scale)}, {"growth_tracker", scalar_tensor(growth_tracker)}});
    };
  };
  const std::string refused =
      "ValueError: GradScaler.load_state_dict: expected a positive, finite scale, got ";
  expect_errors({
      {"ValueError: GradScaler: expected a positive init_scale, got 0", make({.init_scale = 0})},
      {"ValueError: GradScaler: expected a growth_factor above 1, got 1",
       make({.growth_factor = 1})},
      {"ValueError: GradScaler: expected a backoff_factor in (0, 1), got 1",
       make({.backoff_factor = 1})},
      {"ValueError: GradScaler: expected a positive growth_interval, got 0",
       make({.growth_interval = 0})},
      {refused + "0", load(0)},
      {refused + "-2", load(-2)},
      {refused + "inf", load(kInfinity)},
      {refused + "nan", load(std::nan(""))},
      {"ValueError: GradScaler.load_state_dict: expected a growth_tracker of at least 0, got -1",
       load(2, -1)},
      {"ValueError: GradScaler.load_state_dict: expected a growth_tracker of at least 0, got nan",
       load(2, std::nan(""))},
  });
}
