// What was moved from says so, whatever is asked of it.
#include <doctest/doctest.h>

#include <sash/core/error.h>
#include <sash/nn/data/loader.h>
#include <sash/nn/data/token_dataset.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/batch_norm.h>
#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/ema.h>
#include <sash/optim/grad_scaler.h>
#include <sash/optim/muon.h>
#include <sash/optim/schedule.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE("an optimizer that was moved from says so") {
  Tensor p = ones({2, 2}).requires_grad_();
  const auto check = [&](const std::string& name, optim::Optimizer& gone, optim::Optimizer& taker) {
    const auto fails = [&](const char* method, const std::function<void()>& call) {
      CAPTURE(method);
      expect_error<ValueError>(
          name + "." + method + ": expected an optimizer, got one that was moved from", call);
    };
    const StateDict state = taker.state_dict();
    fails("step", [&] { gone.step(); });
    fails("step", [&] { optim::GradScaler().step(gone); });
    fails("zero_grad", [&] { gone.zero_grad(); });
    fails("grad_norm", [&] { (void)gone.grad_norm(); });
    fails("max_grad_norm", [&] { (void)gone.max_grad_norm(); });
    fails("set_max_grad_norm", [&] { gone.set_max_grad_norm(1); });
    fails("skip_nonfinite", [&] { (void)gone.skip_nonfinite(); });
    fails("set_skip_nonfinite", [&] { gone.set_skip_nonfinite(true); });
    fails("add_param_group", [&] { gone.add_param_group({.parameters = {ones({2})}}); });
    fails("num_groups", [&] { (void)gone.num_groups(); });
    fails("parameters", [&] { (void)gone.parameters(); });
    fails("lr", [&] { (void)gone.lr(); });
    fails("set_lr", [&] { gone.set_lr(0.5); });
    fails("set_lr", [&] { gone.set_lr(0.5, 0); });
    fails("reset_moments", [&] { gone.reset_moments(p, {}); });
    fails("state_dict", [&] { (void)gone.state_dict(); });
    fails("load_state_dict", [&] { gone.load_state_dict(state); });
    fails("load_state_dict", [&] { gone.check_state_dict({}); });
    fails("load_state_dict", [&] { (void)gone.prepare_load({}); });
    fails("num_groups", [&] { optim::LambdaLR(gone, [](int64_t) { return 1.0; }); });
    p.set_grad(ones({2, 2}));
    taker.step();  // what took its place works
  };
  optim::SGD sgd({p}, {.lr = 0.5}), sgd_taker = std::move(sgd);
  check("SGD", sgd, sgd_taker);
  CHECK(p.to_vector<float>() == std::vector<float>(4, 0.5f));
  optim::AdamW adam({p}), adam_taker({ones({3}).requires_grad_()});
  adam_taker = std::move(adam);
  check("AdamW", adam, adam_taker);
  optim::Muon muon({p}), muon_taker = std::move(muon);
  check("Muon", muon, muon_taker);
}

TEST_CASE("a module that was moved from says so, and what took its place does not") {
  const Tensor x = ones({4, 8});
  const auto check = [&](nn::Module& gone, nn::Module& taker) {
    CAPTURE(taker.describe());
    expect_error<ValueError>("Module: expected a module, got one that was moved from",
                             [&] { gone(x); });
    CHECK(taker(x).defined());
  };
  nn::Linear linear(8, 2), next_linear = std::move(linear);
  check(linear, next_linear);
  nn::LayerNorm norm(8), next_norm(3);
  next_norm = std::move(norm);
  check(norm, next_norm);
  nn::BatchNorm1d batch(8), next_batch = std::move(batch);
  check(batch, next_batch);
  nn::Sequential net(nn::Linear(8, 2), nn::ReLU()), next_net = std::move(net);
  int calls = 0;
  next_net.register_forward_pre_hook([&](const nn::Module&, std::span<const Tensor>) { ++calls; });
  check(net, next_net);
  CHECK(calls == 1);
  net.register_forward_pre_hook([&](const nn::Module&, std::span<const Tensor>) { ++calls; });
  nn::Linear again = std::move(next_linear);  // refuses without that hook
  check(next_linear, again);
  check(net, next_net);
  CHECK(calls == 2);
  net = std::move(next_net);  // its hook comes along
  check(next_net, net);
  CHECK(calls == 3);
}

TEST_CASE("a captured step, a loader, an average and a LambdaLR that were moved from say so") {
  optim::CapturedStep step([](const std::vector<Tensor>& x) { return x[0].sum(); },
                           {.device = kCPU});
  optim::CapturedStep taker = std::move(step);
  nn::data::Loader loader(nn::data::TensorDataset({arange(0, 3, 1, {.device = kCPU})}),
                          {.device = kCPU});
  const std::string place = loader.state();
  nn::data::Loader next_loader = std::move(loader);
  const Tensor p = ones({2});
  optim::EMA average({p});
  optim::EMA next_average = std::move(average);
  optim::SGD sgd({ones({2}).requires_grad_()}, {.lr = 1});
  optim::LambdaLR rates(sgd, [](int64_t) { return 0.5; });
  optim::LambdaLR next_rates = std::move(rates);
  const std::string of_step =
      "ValueError: CapturedStep: expected a step, got one that was moved from";
  const std::string of_average =
      "ValueError: EMA: expected averages, got averages that were moved from";
  const auto of_loader = [](const std::string& method) {
    return "ValueError: Loader." + method + ": expected a loader, got one that was moved from";
  };
  expect_errors({
      {of_step, [&] { step({p}); }},
      {of_step, [&] { (void)step.results(); }},
      {of_step, [&] { (void)step.reason(); }},
      {of_step, [&] { (void)step.captures(); }},
      {of_step, [&] { step.reset(); }},
      {of_loader("next"), [&] { loader.next(); }},
      {of_loader("next"), [&] { loader.next_or_restart(); }},
      {of_loader("size"), [&] { (void)loader.size(); }},
      {of_loader("epoch"), [&] { (void)loader.epoch(); }},
      {of_loader("position"), [&] { (void)loader.position(); }},
      {of_loader("begin"), [&] { loader.begin(); }},
      {of_loader("state"), [&] { (void)loader.state(); }},
      {of_loader("load_state"), [&] { loader.load_state(place); }},
      {of_average, [&] { average.update(); }},
      {of_average, [&] { average.apply(); }},
      {of_average, [&] { (void)average.state_dict(); }},
      {of_average, [&] { average.load_state_dict({}); }},
      {"ValueError: LambdaLR: expected a function, got one that was moved from",
       [&] { rates.set(1); }},
  });
  nn::data::TensorDataset dataset({p}), next_dataset = std::move(dataset);
  const std::string of_dataset =
      "ValueError: TensorDataset: expected tensors, got tensors that were moved from";
  nn::data::Tokens tokens({1, 2, 3}), next_tokens = std::move(tokens);
  std::vector<int64_t> ids(2);
  expect_errors({
      {of_dataset, [&] { (void)dataset.size(); }},
      {of_dataset, [&] { (void)dataset.get(0); }},
      {of_dataset, [&] { nn::data::Loader(std::move(dataset)); }},
      {"ValueError: Tokens::read: expected tokens, got tokens that were moved from",
       [&] { tokens.read(0, ids); }},
  });
  next_tokens.read(0, ids);
  CHECK(ids[1] == 2);
  CHECK(next_dataset.size() == 2);
  CHECK(taker({p}).item<double>() == 2);
  CHECK(next_loader.size() == 3);
  next_average.update();
  next_rates.set(1);
  CHECK(sgd.lr() == 0.5);
}
