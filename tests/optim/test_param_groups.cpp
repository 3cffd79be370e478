// Groups of parameters: their own options, groups by name, groups added later, frozen parameters.
#include <doctest/doctest.h>

#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/optim/adam.h>
#include <sash/optim/optimizer.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/expect_error.h"

using namespace sash;
using sash::testing::expect_errors;

namespace {

using Values = std::vector<double>;

const TensorOptions kDouble{.dtype = DType::float64};

Tensor parameter(double value = 1) { return full({2}, value, kDouble).requires_grad_(); }

double saved(const optim::Optimizer& optimizer, const std::string& key) {
  return find(optimizer.state_dict(), key)->item<double>();
}

}  // namespace

TEST_CASE("param groups: betas, eps and momentum of their own") {
  Tensor a = parameter(), b = parameter(), c = parameter();
  optim::AdamW together({{.parameters = {a}, .beta1 = 0.5, .beta2 = 0.75},
                         {.parameters = {b}, .weight_decay = 0.0, .eps = 0.1}},
                        {.lr = 0.1});
  CHECK(saved(together, "param_groups.0.beta1") == 0.5);
  CHECK(saved(together, "param_groups.0.eps") == 1e-8);
  CHECK(saved(together, "param_groups.1.beta2") == 0.999);
  CHECK(saved(together, "param_groups.1.eps") == 0.1);
  optim::AdamW alone({c}, {.lr = 0.1, .eps = 0.1, .weight_decay = 0});
  for (int step = 1; step <= 3; ++step) {
    for (Tensor p : {a, b, c}) p.set_grad(full({2}, step, kDouble));
    together.step();
    alone.step();
  }
  CHECK(b.to_vector<double>() == c.to_vector<double>());
  CHECK(a.to_vector<double>() != c.to_vector<double>());

  Tensor d = parameter();
  optim::SGD sgd({{.parameters = {d}, .momentum = 0.5}}, {.lr = 1});
  for (int step = 0; step < 2; ++step) {
    d.set_grad(ones({2}, kDouble));
    sgd.step();
  }
  CHECK(d.to_vector<double>() == Values(2, 1 - 1 - 1.5));
}

TEST_CASE("param groups: added later") {
  Tensor a = parameter(), b = parameter();
  optim::AdamW adamw({a}, {.lr = 0.1});
  a.set_grad(ones({2}, kDouble));
  adamw.step();
  adamw.add_param_group({.parameters = {b}, .lr = 0.5});
  CHECK(adamw.num_groups() == 2);
  CHECK(adamw.lr(1) == 0.5);
  CHECK(adamw.parameters().size() == 2);
  b.set_grad(ones({2}, kDouble));
  adamw.step();
  CHECK(b.to_vector<double>()[0] == doctest::Approx(1 - 0.5 * 1e-2 - 0.5).epsilon(1e-7));
  CHECK(find(adamw.state_dict(), "state.0.step")->item<int64_t>() == 2);
  CHECK(find(adamw.state_dict(), "state.1.step")->item<int64_t>() == 1);
}

TEST_CASE("param groups: by names") {
  nn::Sequential model(nn::Linear(2, 3), nn::LayerNorm(3), nn::Linear(3, 2, {.bias = false}));
  const auto groups = optim::param_groups(
      model, {{.pattern = ".*bias|1\\..*", .weight_decay = 0.0}, {.pattern = "2.*", .lr = 0.5}});
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].parameters.size() == 3);
  CHECK(groups[0].weight_decay == 0.0);
  CHECK(groups[1].parameters.size() == 1);
  CHECK(groups[2].parameters.size() == 1);
  CHECK(groups[2].parameters[0].is_same(model.named_parameters()[0].second));
  CHECK_FALSE(groups[2].weight_decay);
  optim::AdamW adamw(groups, {.lr = 0.25});
  CHECK(adamw.lr(0) == 0.25);
  CHECK(adamw.lr(1) == 0.5);
  // All taken: no group of the others.
  CHECK(optim::param_groups(model, {{.pattern = ".*"}}).size() == 1);
  CHECK(optim::param_groups(model, {}).size() == 1);
}

TEST_CASE("param groups: no moments of parameters that never had a gradient") {
  manual_seed(1);
  Tensor a = parameter(), frozen = full({2}, 1, kDouble);
  optim::AdamW from({a, frozen}), into({a, frozen});
  a.set_grad(ones({2}, kDouble));
  from.step();
  const StateDict state = from.state_dict();
  CHECK(find(state, "state.0.exp_avg"));
  CHECK_FALSE(find(state, "state.1.exp_avg"));
  CHECK(find(state, "state.1.step")->item<int64_t>() == 0);
  into.load_state_dict(state);
  CHECK_FALSE(find(into.state_dict(), "state.1.exp_avg"));
  from.reset_moments(frozen, {0});
  // One that is trained from now on gets them.
  frozen.requires_grad_();
  frozen.set_grad(ones({2}, kDouble));
  into.step();
  CHECK(find(into.state_dict(), "state.1.exp_avg_sq"));
  CHECK(frozen.to_vector<double>()[0] < 1);
  // A step without its moments is refused.
  StateDict broken;
  for (const auto& [key, tensor] : into.state_dict()) {
    if (key != "state.1.exp_avg") broken.emplace_back(key, tensor);
  }
  expect_errors({
      {"ValueError: AdamW.load_state_dict: missing state.1.exp_avg",
       [&] { from.load_state_dict(broken); }},
  });
}

// clang-format off
TEST_CASE("wrong calls: param groups") {
  const Tensor a = parameter(), b = parameter();
  optim::AdamW adamw({a});
  optim::SGD sgd({a});
  const nn::Linear model(2, 3);
  expect_errors({
      {"ValueError: SGD: expected no beta1 in a group, got 0.5",
       [&] { optim::SGD({{.parameters = {a}, .beta1 = 0.5}}); }},
      {"ValueError: SGD: expected no eps in a group, got 0",
       [&] { sgd.add_param_group({.parameters = {b}, .eps = 0.0}); }},
      {"ValueError: AdamW: expected no momentum in a group, got 0.9",
       [&] { optim::AdamW({{.parameters = {a}, .momentum = 0.9}}); }},
      {"ValueError: AdamW: expected beta2 in [0, 1), got 1",
       [&] { optim::AdamW({{.parameters = {a}, .beta2 = 1.0}}); }},
      {"ValueError: Adam: expected beta1 in [0, 1), got -0.5",
       [&] { optim::Adam({{.parameters = {a}, .beta1 = -0.5}}); }},
      {"ValueError: AdamW: expected a finite eps of at least 0, got -1",
       [&] { optim::AdamW({{.parameters = {a}, .eps = -1.0}}); }},
      {"ValueError: SGD: expected a finite momentum of at least 0, got -1",
       [&] { optim::SGD({{.parameters = {a}, .momentum = -1.0}}); }},
      {"ValueError: AdamW: expected a finite lr of at least 0, got -1",
       [&] { adamw.add_param_group({.parameters = {b}, .lr = -1.0}); }},
      {"ValueError: AdamW.add_param_group: expected parameters, got none",
       [&] { adamw.add_param_group({}); }},
      {"ValueError: AdamW: expected each parameter once, got one twice",
       [&] { adamw.add_param_group({.parameters = {b, a}}); }},
      {"ValueError: AdamW: expected parameters, got an undefined tensor",
       [&] { adamw.add_param_group({.parameters = {Tensor()}}); }},
      {"ValueError: AdamW: expected leaves as parameters, got the output of a recorded op",
       [&] { adamw.add_param_group({.parameters = {b * 2}}); }},
      {"ValueError: AdamW: expected contiguous parameters, got shape [3, 2] with strides [1, 3]",
       [&] { adamw.add_param_group({.parameters = {zeros({2, 3}).mT()}}); }},
      {"DTypeError: AdamW: expected floating parameters, got int64",
       [&] { adamw.add_param_group({.parameters = {zeros({2}, {.dtype = DType::int64})}}); }},
      {"IndexError: AdamW.set_lr: expected a group below 1, got 1", [&] { adamw.set_lr(0.1, 1); }},
      {"ValueError: param_groups: expected a pattern that matches a remaining parameter, got 'norm.*'",
       [&] { optim::param_groups(model, {{.pattern = "norm.*"}}); }},
      {"ValueError: param_groups: expected a pattern that matches a remaining parameter, got 'bias'",
       [&] { optim::param_groups(model, {{.pattern = ".*"}, {.pattern = "bias"}}); }},
      {"ValueError: param_groups: expected a pattern that matches a remaining parameter, got ''",
       [&] { optim::param_groups(model, {{.lr = 0.1}}); }},
      {"ValueError: param_groups: expected a regular expression, got '(': Mismatched '(' and ')' in "
       "regular expression",
       [&] { optim::param_groups(model, {{.pattern = "("}}); }},
  });
  CHECK(adamw.num_groups() == 1);
  CHECK(sgd.num_groups() == 1);
}
// clang-format on
