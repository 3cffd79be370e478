// Steps on float32 masters of half parameters, and gradients clipped within the step.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include <sash/core/error.h>
#include <sash/core/parallel.h>
#include <sash/optim/adam.h>
#include <sash/optim/clip.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Make = std::function<std::unique_ptr<optim::Optimizer>(const Tensor&, bool masters)>;

const Make kAdam = [](const Tensor& p, bool masters) {
  return std::make_unique<optim::Adam>(
      std::vector<Tensor>{p},
      optim::AdamOptions{.lr = 0.01, .weight_decay = 0.1, .master_weights = masters});
};
const Make kAdamW = [](const Tensor& p, bool masters) {
  return std::make_unique<optim::AdamW>(std::vector<Tensor>{p},
                                        optim::AdamWOptions{.lr = 0.01, .master_weights = masters});
};
const Make kSGD = [](const Tensor& p, bool masters) {
  return std::make_unique<optim::SGD>(
      std::vector<Tensor>{p},
      optim::SGDOptions{.lr = 0.01, .momentum = 0.9, .master_weights = masters});
};

Tensor leaf(const Tensor& x) { return x.detach().clone().requires_grad_(); }

Tensor master_of(const optim::Optimizer& optimizer) {
  return *find(optimizer.state_dict(), "state.0.master");
}

}  // namespace

TEST_CASE_TEMPLATE("masters: halves are the rounded parameters of a float32 run", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  const int threads = num_threads();
  for (const DType half : {DType::float16, DType::bfloat16}) {
    for (const Make& make : {kAdam, kAdamW, kSGD}) {
      const TensorOptions on{.dtype = half, .device = On::device};
      Tensor p = randn({40003}, on).requires_grad_();
      Tensor q = leaf(p.detach().to(DType::float32));
      const auto optimizer = make(p, true), reference = make(q, true);
      for (int step = 0; step < 4; ++step) {
        const Tensor g = randn({40003}, on);
        p.set_grad(g);
        q.set_grad(g.to(DType::float32));
        set_num_threads(1 + step % 3);
        optimizer->step();
        reference->step();
        set_num_threads(threads);
        CHECK(p.dtype() == half);
        CHECK(all_same(master_of(*optimizer), q.detach()));
        CHECK(all_same(p.detach(), q.detach().to(half)));
      }
      CHECK_FALSE(find(reference->state_dict(), "state.0.master"));
    }
  }
}

TEST_CASE_TEMPLATE("masters: the first parameter may be empty", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const TensorOptions half{.dtype = DType::bfloat16, .device = On::device};
  Tensor none = zeros({0}, half).requires_grad_(), p = ones({3}, half).requires_grad_();
  optim::AdamW adamw({none, p}, {.lr = 1e-4, .weight_decay = 0, .master_weights = true});
  for (Tensor x : {none, p}) x.set_grad(ones(x.shape(), half));
  adamw.step();
  const Tensor master = *find(adamw.state_dict(), "state.1.master");
  CHECK(master.to_vector<float>()[0] == doctest::Approx(1 - 1e-4).epsilon(1e-7));
}

TEST_CASE("masters: small steps add up, which bfloat16 alone loses") {
  for (const bool masters : {false, true}) {
    Tensor p = ones({3}, {.dtype = DType::bfloat16}).requires_grad_();
    optim::AdamW adamw({p}, {.lr = 1e-4, .weight_decay = 0, .master_weights = masters});
    for (int step = 0; step < 100; ++step) {
      p.set_grad(ones({3}, {.dtype = DType::bfloat16}));
      adamw.step();
    }
    CHECK(p.detach().to(DType::float32).to_vector<float>()[0] ==
          doctest::Approx(masters ? 0.99 : 1).epsilon(1e-3));
  }
}

TEST_CASE("masters: a loaded state continues bit for bit, whatever is loaded first") {
  manual_seed(2);
  const TensorOptions half{.dtype = DType::bfloat16};
  Tensor p = randn({67}, half).requires_grad_();
  const auto from = kAdamW(p, true);
  const auto step = [&](optim::Optimizer& optimizer, Tensor parameter, uint64_t seed) {
    manual_seed(seed);
    parameter.set_grad(randn({67}, half));
    optimizer.step();
  };
  for (uint64_t i = 0; i < 5; ++i) step(*from, p, i);
  for (const bool state_first : {false, true}) {
    Tensor q = randn({67}, half).requires_grad_();
    const auto into = kAdamW(q, true);
    step(*into, q, 9);
    StateDict saved;
    for (const auto& [key, x] : from->state_dict()) saved.emplace_back(key, x.clone());
    if (state_first) into->load_state_dict(saved);
    q.detach().copy_(p.detach());
    if (!state_first) into->load_state_dict(saved);
    Tensor r = leaf(p);
    const auto whole = kAdamW(r, true);
    whole->load_state_dict(saved);
    for (uint64_t i = 10; i < 13; ++i) {
      step(*into, q, i);
      step(*whole, r, i);
    }
    CHECK(all_same(master_of(*into), master_of(*whole)));
    CHECK(all_same(q.detach(), r.detach()));
  }
  const auto without = kAdamW(leaf(p), false);
  expect_error<ValueError>("AdamW.load_state_dict: unexpected state.0.master",
                           [&] { without->load_state_dict(from->state_dict()); });
  const auto empty = kAdamW(leaf(p), true);
  StateDict none;
  for (const auto& [key, x] : from->state_dict()) {
    if (key != "state.0.master") none.emplace_back(key, x);
  }
  expect_error<ValueError>("AdamW.load_state_dict: missing state.0.master",
                           [&] { empty->load_state_dict(none); });
}

TEST_CASE("masters: elements that someone else writes are taken over, the others stay") {
  Tensor p = ones({4}, {.dtype = DType::bfloat16}).requires_grad_();
  const auto sgd = kSGD(p, true);
  const auto step = [&] {
    p.set_grad(full({4}, 0.0625, {.dtype = DType::bfloat16}));
    sgd->step();
  };
  step();
  const std::vector<float> before = master_of(*sgd).to_vector<float>();
  CHECK(before[0] == 1 - 0.01F * 0.0625F);
  {
    const NoGradGuard no_grad;
    p[1] = 5;
  }
  sgd->set_lr(0);
  step();
  const std::vector<float> after = master_of(*sgd).to_vector<float>();
  CHECK(after[0] == before[0]);
  CHECK(after[1] == 5);
  CHECK(p.detach().to(DType::float32).to_vector<float>()[1] == 5);
}

TEST_CASE_TEMPLATE("max_grad_norm clips within the step", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(3);
  const TensorOptions on{.device = On::device};
  for (const double limit : {0.5, 1e6}) {
    std::vector<Tensor> folded, clipped;
    for (const Shape& shape : {Shape{20001}, Shape{3, 5}, Shape{0}}) {
      folded.push_back(randn(shape, on).requires_grad_());
      clipped.push_back(leaf(folded.back()));
      folded.back().set_grad(randn(shape, on));
      clipped.back().set_grad(folded.back().grad().clone());
    }
    const Tensor before = folded[0].grad().clone();
    optim::AdamW one(folded, {.lr = 0.1, .eps = 1e-2, .max_grad_norm = limit});
    optim::AdamW other(clipped, {.lr = 0.1, .eps = 1e-2});
    CHECK_FALSE(one.grad_norm().defined());
    one.step();
    const double norm = optim::clip_grad_norm_(clipped, limit).item<double>();
    other.step();
    CHECK(one.grad_norm().item<double>() == norm);
    CHECK(one.grad_norm().device() == On::device);
    CHECK(all_same(folded[0].grad(), before));
    for (size_t i = 0; i < folded.size(); ++i) {
      if (folded[i].numel() == 0) continue;
      CHECK(largest_difference(folded[i].detach(), clipped[i].detach()) < 1e-6);
    }
  }
}

TEST_CASE_TEMPLATE("an infinite max_grad_norm leaves gradients as they are", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const double infinity = std::numeric_limits<double>::infinity();
  const TensorOptions on{.dtype = DType::float64, .device = On::device};
  Tensor p = zeros({3}, on).requires_grad_();
  optim::SGD sgd({p}, {.lr = 1, .max_grad_norm = infinity});
  p.set_grad(tensor({1.0, infinity, 2.0}, on));
  sgd.step();
  CHECK(sgd.grad_norm().item<double>() == infinity);
  CHECK(p.detach().to_vector<double>() == std::vector<double>{-1, -infinity, -2});
  // The square of a finite gradient may overflow too.
  p.detach().zero_();
  p.set_grad(tensor({1e160, 0.0, 1.0}, on));
  sgd.step();
  CHECK(p.detach().to_vector<double>() == std::vector<double>{-1e160, 0, -1});
}

TEST_CASE("max_grad_norm: NaN, no gradients, and wrong limits") {
  Tensor p = ones({2}).requires_grad_();
  optim::AdamW adamw({p}, {.max_grad_norm = 1});
  adamw.step();
  CHECK(adamw.grad_norm().item<double>() == 0);
  CHECK(p.detach().to_vector<float>() == std::vector<float>{1, 1});
  p.set_grad(full({2}, std::numeric_limits<double>::quiet_NaN()));
  adamw.step();
  CHECK(std::isnan(adamw.grad_norm().item<double>()));
  CHECK(std::isnan(p.detach().to_vector<float>()[0]));
  adamw.set_max_grad_norm(0);
  adamw.step();
  CHECK_FALSE(adamw.grad_norm().defined());
  p.set_grad(full({2}, 3));
  optim::SGD measured({p}, {.max_grad_norm = std::numeric_limits<double>::infinity()});
  measured.step();
  CHECK(measured.grad_norm().item<double>() == doctest::Approx(std::sqrt(18)));
  const auto make = [&](double limit) { optim::SGD({p}, {.max_grad_norm = limit}); };
  expect_error<ValueError>("SGD: expected a max_grad_norm of at least 0, got -1",
                           [&] { make(-1); });
  expect_error<ValueError>("SGD: expected a max_grad_norm of at least 0, got nan",
                           [&] { make(std::nan("")); });
}
