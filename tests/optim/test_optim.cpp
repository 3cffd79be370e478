#include <doctest/doctest.h>
#include <sash/core/parallel.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/dropout.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/ops/update/optimizer.h>
#include <sash/optim/adam.h>
#include <sash/optim/clip.h>
#include <sash/optim/schedule.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <cmath>
#include <functional>
#include <limits>

#include "../support/names.h"

using namespace sash;
using sash::testing::keys;

namespace {

using Values = std::vector<double>;

const TensorOptions kDouble{.dtype = DType::float64};

Tensor parameter(const Shape& shape, DType dtype = DType::float64) {
  return randn(shape, {.dtype = dtype}).requires_grad_();
}

// Runs `steps` with random gradients on both sides, the reference in plain loops over one
// parameter: reference(step from 1, p, g).
void compare(optim::Optimizer& optimizer, Tensor p, int steps,
             const std::function<void(int, double&, double, size_t)>& reference) {
  Values expected = p.to_vector<double>();
  for (int step = 1; step <= steps; ++step) {
    const Tensor g = randn(p.shape(), kDouble);
    p.set_grad(g);
    optimizer.step();
    const Values gradient = g.to_vector<double>();
    for (size_t i = 0; i < expected.size(); ++i) reference(step, expected[i], gradient[i], i);
  }
  const Values got = p.to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("Adam and AdamW follow their formulas") {
  manual_seed(1);
  const double lr = 0.03, beta1 = 0.8, beta2 = 0.95, eps = 1e-3, decay = 0.1;
  for (const bool decoupled : {false, true}) {
    CAPTURE(decoupled);
    const Tensor p = parameter({3, 7});
    Values m(21, 0.0), v(21, 0.0);
    const auto reference = [&](int t, double& x, double g, size_t i) {
      if (decoupled) x *= 1 - lr * decay;
      if (!decoupled) g += decay * x;
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(beta1, t));
      const double v_hat = v[i] / (1 - std::pow(beta2, t));
      x -= lr * m_hat / (std::sqrt(v_hat) + eps);
    };
    if (decoupled) {
      optim::AdamW adamw({p}, {lr, beta1, beta2, eps, decay});
      compare(adamw, p, 5, reference);
    } else {
      optim::Adam adam({p}, {lr, beta1, beta2, eps, decay});
      compare(adam, p, 5, reference);
    }
  }
}

TEST_CASE("SGD follows its formula") {
  manual_seed(2);
  for (const optim::SGDOptions& o :
       {optim::SGDOptions{.lr = 0.1}, optim::SGDOptions{.lr = 0.1, .weight_decay = 0.2},
        optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1},
        optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}}) {
    CAPTURE(o.momentum);
    const Tensor p = parameter({13});
    Values buffer(13, 0.0);
    optim::SGD sgd({p}, o);
    compare(sgd, p, 4, [&](int step, double& x, double g, size_t i) {
      g += o.weight_decay * x;
      if (o.momentum == 0) {
        x -= o.lr * g;
        return;
      }
      buffer[i] = step == 1 ? g : o.momentum * buffer[i] + (1 - o.dampening) * g;
      x -= o.lr * (o.nesterov ? g + o.momentum * buffer[i] : buffer[i]);
    });
  }
}

TEST_CASE("a step over many tensors equals steps over each, for any number of threads") {
  manual_seed(3);
  const std::vector<Shape> shapes{{70000}, {0}, {1}, {127, 129}, {16384}, {16385}};
  std::vector<Tensor> together, threaded;
  const int threads = num_threads();
  for (const Shape& shape : shapes) {
    Tensor p = parameter(shape, DType::float32);
    p.set_grad(randn(shape));
    Tensor q = p.detach().clone().requires_grad_();
    q.set_grad(p.grad());
    Tensor alone = p.detach().clone().requires_grad_();
    alone.set_grad(p.grad());
    set_num_threads(1);
    optim::AdamW(std::vector<Tensor>{alone}).step();
    set_num_threads(threads);
    together.insert(together.end(), {p, alone});
    threaded.push_back(q);
  }
  std::vector<Tensor> all;
  for (size_t i = 0; i < together.size(); i += 2) all.push_back(together[i]);
  optim::AdamW(all).step();
  set_num_threads(3);
  optim::AdamW(threaded).step();
  set_num_threads(threads);
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].to_vector<float>() == together[2 * i + 1].to_vector<float>());
    CHECK(all[i].to_vector<float>() == threaded[i].to_vector<float>());
  }
}

TEST_CASE("parameters without a gradient are left alone and count no step") {
  Tensor used = ones({2}, kDouble).requires_grad_();
  Tensor idle = ones({2}, kDouble).requires_grad_();
  optim::AdamW adamw({used, idle});
  CHECK(keys(adamw.state_dict())[0] == "param_groups.0.lr");
  adamw.step();
  CHECK(keys(adamw.state_dict())[0] == "param_groups.0.lr");
  used.set_grad(ones({2}, kDouble));
  adamw.step();
  CHECK(idle.to_vector<double>() == Values{1, 1});
  CHECK(find(adamw.state_dict(), "state.0.step")->item<int64_t>() == 1);
  CHECK(find(adamw.state_dict(), "state.1.step")->item<int64_t>() == 0);
  idle.set_grad(ones({2}, kDouble));
  adamw.step();
  // The first step moves by the learning rate, whatever the size of the gradient.
  CHECK(idle.to_vector<double>()[0] == doctest::Approx(1 - 1e-3 - 1e-5).epsilon(1e-9));
  adamw.zero_grad();
  CHECK_FALSE(used.grad().defined());
}

TEST_CASE("groups have their own learning rate and weight decay") {
  Tensor a = ones({1}, kDouble).requires_grad_(), b = ones({1}, kDouble).requires_grad_();
  optim::SGD sgd({{.parameters = {a}}, {.parameters = {b}, .lr = 0.5, .weight_decay = 0.0}},
                 {.lr = 0.1, .weight_decay = 1});
  const auto step = [&] {
    a.set_grad(ones({1}, kDouble));
    b.set_grad(ones({1}, kDouble));
    sgd.step();
  };
  step();
  CHECK(a.item<double>() == doctest::Approx(1 - 0.1 * 2));
  CHECK(b.item<double>() == doctest::Approx(0.5));
  sgd.set_lr(0.25, 1);
  CHECK(sgd.lr(0) == 0.1);
  CHECK(sgd.lr(1) == 0.25);
  step();
  CHECK(b.item<double>() == doctest::Approx(0.25));
  sgd.set_lr(0);
  step();
  CHECK(b.item<double>() == doctest::Approx(0.25));
}

TEST_CASE("an optimizer follows a model that is cast") {
  manual_seed(4);
  nn::Linear model(3, 2);
  optim::AdamW adamw(model.parameters());
  const auto step = [&](const Tensor& x) {
    adamw.zero_grad();
    model(x).sum().backward();
    adamw.step();
  };
  step(ones({1, 3}));
  model.to(DType::float64);
  const Values before = model.weight.to_vector<double>();
  step(ones({1, 3}, kDouble));
  CHECK(model.weight.to_vector<double>() != before);
  CHECK(find(adamw.state_dict(), "state.0.exp_avg")->dtype() == DType::float64);
}

TEST_CASE("a step counts as a write: an older graph's backward pass throws") {
  Tensor w = ones({2}, kDouble).requires_grad_();
  const Tensor loss = (w * w).sum();
  w.set_grad(ones({2}, kDouble));
  optim::SGD({w}).step();
  CHECK_THROWS_AS(loss.backward(), AutogradError);
}

TEST_CASE("wrong calls: parameters and options of optimizers") {
  const Tensor p = parameter({4, 4});
  const auto adamw = [](std::vector<Tensor> parameters, optim::AdamWOptions options = {}) {
    optim::AdamW optimizer(std::move(parameters), options);
  };
  CHECK_THROWS_WITH_AS(adamw({}), "AdamW: expected parameters, got none", ValueError);
  CHECK_THROWS_WITH_AS(adamw({p, p}), "AdamW: expected each parameter once, got one twice",
                       ValueError);
  CHECK_THROWS_WITH_AS(adamw({Tensor()}), "AdamW: expected parameters, got an undefined tensor",
                       ValueError);
  CHECK_THROWS_WITH_AS(adamw({p.sum()}),
                       "AdamW: expected leaves as parameters, got the output of a recorded op",
                       ValueError);
  CHECK_THROWS_WITH_AS(
      adamw({p.detach().mT()}),
      "AdamW: expected contiguous parameters, got shape [4, 4] with strides [1, 4]", ValueError);
  CHECK_THROWS_WITH_AS(adamw({zeros({2}, {.dtype = DType::int64})}),
                       "AdamW: expected floating parameters, got int64", DTypeError);
  CHECK_THROWS_WITH_AS(adamw({p}, {.lr = -1}), "AdamW: expected a finite lr of at least 0, got -1",
                       ValueError);
  CHECK_THROWS_WITH_AS(adamw({p}, {.beta2 = 1}), "AdamW: expected beta2 in [0, 1), got 1",
                       ValueError);
  CHECK_THROWS_WITH_AS(optim::SGD({p}, {.nesterov = true}),
                       "SGD: expected momentum > 0 and dampening 0 for nesterov, got 0 and 0",
                       ValueError);
  optim::AdamW fine({p});
  CHECK_THROWS_WITH_AS(fine.set_lr(std::nan("")),
                       "AdamW.set_lr: expected a finite lr of at least 0, got nan", ValueError);
  CHECK_THROWS_WITH_AS(fine.lr(1), "AdamW.lr: expected a group below 1, got 1", IndexError);
}

TEST_CASE("state dictionaries of optimizers") {
  Tensor p = ones({3}, kDouble).requires_grad_();
  optim::AdamW from({p}, {.lr = 0.25});
  p.set_grad(full({3}, 2, kDouble));
  from.step();
  CHECK(keys(from.state_dict()) ==
        std::vector<std::string>{"state.0.step", "state.0.exp_avg", "state.0.exp_avg_sq",
                                 "param_groups.0.lr", "param_groups.0.beta1",
                                 "param_groups.0.beta2", "param_groups.0.eps",
                                 "param_groups.0.weight_decay"});
  CHECK(find(from.state_dict(), "state.0.exp_avg")->to_vector<double>()[0] == doctest::Approx(0.2));
  optim::AdamW into({p});
  into.load_state_dict(from.state_dict());
  CHECK(into.lr() == 0.25);
  CHECK(find(into.state_dict(), "state.0.step")->item<int64_t>() == 1);

  optim::SGD sgd({p});
  CHECK_THROWS_WITH_AS(
      sgd.load_state_dict({{"state.0.step", zeros({2}, {.dtype = DType::int64})},
                           {"param_groups.0.lr", scalar_tensor(1.0)},
                           {"param_groups.0.beta1", scalar_tensor(1.0)}}),
      "SGD.load_state_dict: missing param_groups.0.momentum, param_groups.0.dampening, "
      "param_groups.0.weight_decay, param_groups.0.nesterov; unexpected param_groups.0.beta1; "
      "mismatched state.0.step (expected shape [], got [2])",
      ValueError);
  CHECK(sgd.lr() == 1e-3);
}

TEST_CASE("SGD takes momentum over with a saved state, as PyTorch does") {
  manual_seed(7);
  const auto step = [](optim::SGD& sgd, Tensor p, double g) {
    p.set_grad(full({3}, g, kDouble));
    sgd.step();
  };
  for (const int steps : {0, 1, 2}) {  // before the saved state
    CAPTURE(steps);
    Tensor p = parameter({3}), q = parameter({3});
    optim::SGD from({p}, {.lr = 0.1, .momentum = 0.9});
    for (int i = 0; i < steps; ++i) step(from, p, i + 1);
    optim::SGD into({q}, {.lr = 0.5});
    step(into, q, 4);
    into.load_state_dict(from.state_dict());
    q.detach().copy_(p.detach());
    for (int i = 0; i < 3; ++i) {
      step(from, p, i);
      step(into, q, i);
    }
    CHECK(q.to_vector<double>() == p.to_vector<double>());
    CHECK(find(into.state_dict(), "state.0.momentum_buffer"));
    CHECK(find(into.state_dict(), "param_groups.0.momentum")->item<double>() == 0.9);
  }
  // And back: no momentum.
  Tensor p = parameter({3}), q = parameter({3});
  optim::SGD from({p}, {.lr = 0.1}), into({q}, {.lr = 0.5, .momentum = 0.9});
  step(from, p, 1);
  step(into, q, 1);
  into.load_state_dict(from.state_dict());
  CHECK_FALSE(find(into.state_dict(), "state.0.momentum_buffer"));
  q.detach().copy_(p.detach());
  step(from, p, 2);
  step(into, q, 2);
  CHECK(q.to_vector<double>() == p.to_vector<double>());
}

TEST_CASE("a saved state with invalid hyperparameters is refused") {
  Tensor p = ones({3}, kDouble).requires_grad_();
  const auto changed = [](const optim::Optimizer& optimizer, const std::string& key, double value) {
    StateDict dict = optimizer.state_dict();
    for (auto& [name, tensor] : dict) {
      if (name == key) tensor = scalar_tensor(value, kDouble);
    }
    return dict;
  };
  optim::SGD sgd({p});
  optim::AdamW adamw({p});
  CHECK_THROWS_WITH_AS(sgd.load_state_dict(changed(sgd, "param_groups.0.lr", std::nan(""))),
                       "SGD.load_state_dict: expected a finite lr of at least 0, got nan",
                       ValueError);
  CHECK_THROWS_WITH_AS(sgd.load_state_dict(changed(sgd, "param_groups.0.nesterov", 1)),
                       "SGD.load_state_dict: expected momentum > 0 and dampening 0 for nesterov, "
                       "got 0 and 0",
                       ValueError);
  CHECK_THROWS_WITH_AS(adamw.load_state_dict(changed(adamw, "param_groups.0.beta2", 1)),
                       "AdamW.load_state_dict: expected beta2 in [0, 1), got 1", ValueError);
  CHECK(sgd.lr() == 1e-3);
}

TEST_CASE("a saved state with a negative step count is refused") {
  Tensor p = ones({3}, kDouble).requires_grad_();
  optim::Adam adam({p});
  p.set_grad(ones({3}, kDouble));
  adam.step();
  StateDict dict;
  for (const auto& [name, tensor] : adam.state_dict()) dict.emplace_back(name, tensor.clone());
  for (auto& [name, tensor] : dict) {
    if (name == "state.0.step") tensor.fill_(-5);
  }
  CHECK_THROWS_WITH_AS(adam.load_state_dict(dict),
                       "Adam.load_state_dict: expected a step count of at least 0, got -5 for "
                       "'state.0.step'",
                       ValueError);
  CHECK(find(adam.state_dict(), "state.0.step")->item<int64_t>() == 1);
}

TEST_CASE("clipping by norm") {
  manual_seed(5);
  std::vector<Tensor> parameters;
  double square = 0;
  std::vector<Values> before;
  for (const Shape& shape : {Shape{40001}, Shape{3, 5}, Shape{7}}) {
    Tensor p = zeros(shape, kDouble).requires_grad_();
    p.set_grad(randn(shape, kDouble));
    before.push_back(p.grad().to_vector<double>());
    for (const double g : before.back()) square += g * g;
    parameters.push_back(p);
  }
  parameters.push_back(zeros({3}).requires_grad_());  // no gradient
  const double norm = std::sqrt(square);
  CHECK(optim::clip_grad_norm_(parameters, 1e9).item<double>() ==
        doctest::Approx(norm).epsilon(1e-13));
  CHECK(parameters[1].grad().to_vector<double>() == before[1]);
  const Tensor returned = optim::clip_grad_norm_(parameters, 2);
  CHECK(returned.shape() == Shape{});
  CHECK(returned.item<double>() == doctest::Approx(norm).epsilon(1e-13));
  for (size_t k = 0; k < 3; ++k) {
    const Values after = parameters[k].grad().to_vector<double>();
    for (size_t i = 0; i < after.size(); i += 17) {
      CHECK(after[i] == doctest::Approx(before[k][i] * 2 / (norm + 1e-6)).epsilon(1e-12));
    }
  }
  CHECK(optim::clip_grad_norm_({}, 1).item<double>() == 0);
  CHECK_THROWS_WITH_AS(optim::clip_grad_norm_(parameters, -1),
                       "clip_grad_norm_: expected a max_norm of at least 0, got -1", ValueError);
}

TEST_CASE("clipping with NaN, extreme limits and strided gradients") {
  Tensor p = zeros({2, 3}).requires_grad_();
  p.set_grad(tensor<float>({1, -5, 3, 0.5F, 2, -0.25F}).view({3, 2}).mT());
  optim::clip_grad_value_({p}, 1);
  CHECK(p.grad().to_vector<float>() == std::vector<float>{1, 1, 1, -1, 0.5F, -0.25F});
  p.set_grad(full({2, 3}, std::numeric_limits<double>::quiet_NaN()));
  CHECK(std::isnan(optim::clip_grad_norm_({p}, 1).item<double>()));
  CHECK(std::isnan(p.grad().to_vector<double>()[0]));
  optim::clip_grad_value_({p}, 1);
  CHECK(std::isnan(p.grad().to_vector<double>()[0]));
  CHECK_THROWS_WITH_AS(optim::clip_grad_value_({p}, std::nan("")),
                       "clip_grad_value_: expected a limit of at least 0, got nan", ValueError);
}

TEST_CASE("the norm has the same bits for any number of threads") {
  manual_seed(6);
  const std::vector<Tensor> tensors{randn({100003}), randn({65, 63}), randn({5})};
  const int threads = num_threads();
  set_num_threads(1);
  const double one = global_norm(tensors).item<double>();
  set_num_threads(4);
  CHECK(global_norm(tensors).item<double>() == one);
  set_num_threads(threads);
  CHECK_THROWS_WITH_AS(global_norm(std::vector<Tensor>{randn({4, 2}).mT()}),
                       "global_norm: expected contiguous tensors, got strides [1, 2]", ValueError);
}

TEST_CASE("schedules") {
  const optim::WarmupCosine cosine{.lr = 1, .warmup = 4, .total = 14, .floor = 0.1};
  CHECK(cosine(0) == 0.25);
  CHECK(cosine(3) == 1);
  CHECK(cosine(4) == 1);
  CHECK(cosine(9) == doctest::Approx(0.55));
  CHECK(cosine(14) == doctest::Approx(0.1));
  CHECK(cosine(1000) == doctest::Approx(0.1));
  const optim::LinearDecay linear{.lr = 1, .warmup = 0, .total = 10, .floor = 0};
  CHECK(linear(0) == 1);
  CHECK(linear(5) == doctest::Approx(0.5));
  CHECK(linear(11) == 0);
  const optim::WarmupStableDecay wsd{.lr = 1, .warmup = 2, .total = 10, .decay = 4, .floor = 0};
  CHECK(wsd(0) == 0.5);
  CHECK(wsd(6) == 1);
  CHECK(wsd(8) == doctest::Approx(0.5));
  CHECK(wsd(10) == 0);
  const optim::Constant constant{.lr = 0.5, .warmup = 5};
  CHECK(constant(0) == doctest::Approx(0.1));
  CHECK(constant(5) == 0.5);
}
