// A step that is recorded and replayed has the bits of one that is called; what cannot be recorded
// runs eagerly, with the same bits.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include <sash/nn/models/causal_lm.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/elementwise/dropout_state.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/ops/loss/mse_loss.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/adam.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/clip.h>
#include <sash/optim/grad_scaler.h>
#include <sash/optim/schedule.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/recompute.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;
using optim::CapturedStep;

namespace {

constexpr int64_t kVocab = 19, kBatch = 3, kContext = 24;

using Tensors = std::vector<Tensor>;

// Tokens and targets; the same for a number on every device.
Tensors batch(int64_t number, Device device, int64_t sequences = kBatch) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < sequences * (kContext + 1); ++i) {
    tokens.push_back((i * i + 7 * number + i * number) % kVocab);
  }
  const Tensor all =
      from_host(tokens.data(), {sequences, kContext + 1}, DType::int64, {.device = kCPU});
  return {all.narrow(1, 0, kContext).contiguous().to(device),
          all.narrow(1, 1, kContext).contiguous().to(device)};
}

// A model, its optimizer and the step that trains it; equal for equal seeds.
struct Training {
  explicit Training(Device on, double dropout = 0.2)
      : device(on), model(make(dropout, on)), optimizer(model.parameters(), {.lr = 1e-2}) {}

  static nn::CausalLM make(double dropout, Device device) {
    manual_seed(11);
    nn::CausalLM model = small_lm(
        {.vocab = kVocab, .context = kContext, .dim = 32, .dropout = dropout, .tie_weights = true});
    model.to(device);
    return model;
  }

  Tensors run(const Tensors& inputs) {
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(model(inputs[0]), inputs[1]);
    loss.backward();
    const Tensor norm = optim::clip_grad_norm_(model.parameters(), 0.5);
    optimizer.step();
    return {loss, norm};
  }
  CapturedStep step() {
    return CapturedStep([this](const Tensors& inputs) { return run(inputs); }, {.device = device});
  }

  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const Tensor& p : model.parameters()) {
      for (const Tensor& x : {p.detach(), p.grad()}) {
        if (!x.defined()) continue;
        const std::vector<double> part = x.to_vector<double>();
        all.insert(all.end(), part.begin(), part.end());
      }
    }
    return all;
  }

  Device device;
  nn::CausalLM model;
  optim::AdamW optimizer;
};

double number(const Tensor& x) { return x.item<double>(); }
std::vector<float> elements(const Tensor& x) { return x.to_vector<float>(); }

// How often a device records where a card would record `count` times.
int64_t records(Device device, int64_t count) { return device.is_cuda() ? count : 0; }

}  // namespace

TEST_CASE_TEMPLATE("captured step: many steps have eager's bits, and are recorded once", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const int steps = short_tests() ? 10 : 100;
  const optim::WarmupCosine schedule{.lr = 1e-2, .warmup = 5, .total = steps, .floor = 1e-3};
  std::vector<double> losses;
  Training eager(device);
  for (int i = 0; i < steps; ++i) {
    eager.optimizer.set_lr(schedule(i));
    for (const Tensor& x : eager.run(batch(i, device))) losses.push_back(x.item<double>());
  }
  const RandomState last = random_state(device);

  Training training(device);
  CapturedStep step = training.step();
  std::vector<double> found;
  for (int i = 0; i < steps; ++i) {
    training.optimizer.set_lr(schedule(i));
    const Tensor loss = step(batch(i, kCPU));  // copied to the device by the step
    CHECK_FALSE(loss.requires_grad());
    CHECK(loss.item<double>() == step.results()[0].item<double>());
    for (const Tensor& x : step.results()) found.push_back(x.item<double>());
    if (i > 0 && device.is_cuda()) CHECK(step.reason() == "");
  }
  CHECK(found == losses);
  CHECK(training.numbers() == eager.numbers());
  CHECK(random_state(device) == last);
  CHECK(step.captures() == records(device, 1));
}

TEST_CASE_TEMPLATE("captured step: results of earlier calls stay", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  CapturedStep step([](const Tensors& x) { return x[0] + x[0]; }, {.device = device});
  Tensors kept;
  for (int i = 0; i < 5; ++i) kept.push_back(step({full({7}, i, {.device = kCPU})}));
  for (int i = 0; i < 5; ++i) {
    CHECK(kept[static_cast<size_t>(i)].to_vector<double>() == std::vector<double>(7, 2 * i));
  }
}

TEST_CASE_TEMPLATE("captured step: results stay, though the step writes to what it returned", On,
                   Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  Tensor total = zeros({}, {.device = device}), kept[4];
  CapturedStep step([&](const Tensors& x) { return total.add_(x[0]).view({1}); },
                    {.device = device});
  for (Tensor& one : kept) one = step({ones({}, {.device = kCPU})});
  for (int i = 0; i < 4; ++i) CHECK(number(kept[i]) == i + 1);
}

TEST_CASE_TEMPLATE("captured step: dropout draws anew in each call, as it does eagerly", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const Tensor x = ones({1000}, {.device = device});
  const auto draw = [](const Tensors& in) {
    return Tensors{dropout(in[0], 0.5), dropout(in[0], 0.3)};
  };
  manual_seed(5);
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < 6; ++i) {
    for (const Tensor& y : draw({x})) expected.push_back(elements(y));
    rand({10}, {.device = device});
  }
  manual_seed(5);
  CapturedStep step(draw, {.device = device});
  for (size_t i = 0; i < 6; ++i) {
    step({x});
    for (size_t k = 0; k < 2; ++k) {
      CHECK(elements(step.results()[k]) == expected[2 * i + k]);
    }
    rand({10}, {.device = device});  // others draw in between
    if (i > 0) CHECK(expected[2 * i] != expected[2 * i - 2]);
  }
  CHECK(step.captures() == records(device, 1));
  manual_seed(6);  // a recorded kernel has its seed
  const std::vector<float> other = elements(draw({x})[0]);
  manual_seed(6);
  CHECK(elements(step({x})) == other);
  CHECK(step.captures() == records(device, 2));
}

TEST_CASE_TEMPLATE("captured step: gradients accumulate within a step, and over steps", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  constexpr int kSteps = 6, kParts = 3;
  Training eager(device), within(device), over(device);
  const auto backward = [](Training& t, const Tensor& x, const Tensor& y) {
    const Tensor loss = cross_entropy(t.model(x), y) / kParts;
    loss.backward();
    return loss;
  };
  const auto update = [](Training& t) {
    const Tensor norm = optim::clip_grad_norm_(t.model.parameters(), 0.5);
    t.optimizer.step();
    t.optimizer.zero_grad();
    return norm;
  };
  CapturedStep all(
      [&](const Tensors& in) {
        for (size_t k = 0; k < 2 * kParts; k += 2) backward(within, in[k], in[k + 1]);
        return update(within);
      },
      {.device = device});
  CapturedStep part([&](const Tensors& in) { return backward(over, in[0], in[1]); },
                    {.device = device});
  CapturedStep end([&](const Tensors&) { return update(over); }, {.device = device});

  std::vector<std::vector<double>> norms(3);
  for (size_t run = 0; run < 3; ++run) {
    manual_seed(3);
    for (int i = 0; i < kSteps; ++i) {
      Tensors inputs;
      for (int k = 0; k < kParts; ++k) {
        for (const Tensor& x : batch(kParts * i + k, device)) inputs.push_back(x);
      }
      if (run == 1) {
        norms[run].push_back(number(all(inputs)));
        continue;
      }
      for (size_t k = 0; k < inputs.size(); k += 2) {
        if (run == 0) backward(eager, inputs[k], inputs[k + 1]);
        if (run == 2) part({inputs[k], inputs[k + 1]});
      }
      norms[run].push_back(number(run == 0 ? update(eager) : end({})));
    }
  }
  CHECK(norms[1] == norms[0]);
  CHECK(norms[2] == norms[0]);
  CHECK(within.numbers() == eager.numbers());
  CHECK(over.numbers() == eager.numbers());
  CHECK(all.captures() == records(device, 1));
  // Into gradients that eager steps made, into none, and into its own.
  CHECK(part.captures() <= records(device, 4));
  CHECK(end.captures() <= records(device, 2));
  if (device.is_cuda()) CHECK(part.reason() == "");
  if (device.is_cuda()) CHECK(end.reason() == "");
}

TEST_CASE_TEMPLATE("captured step: recomputed parts draw the same masks again", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  manual_seed(1);
  const Tensor start = randn({8, 8}, {.device = device});
  const auto run = [](Tensor& w, optim::Optimizer& optimizer, const Tensor& x) {
    optimizer.zero_grad();
    const Tensor hidden = dropout(x, 0.1);
    const Tensor y =
        checkpoint([&w](const Tensor& h) { return dropout(matmul(h, w), 0.5); }, hidden);
    const Tensor loss = mse_loss(dropout(y, 0.2), x);
    loss.backward();
    optimizer.step();
    return loss;
  };
  std::vector<std::vector<float>> weights;
  for (const bool captured : {false, true}) {
    Tensor w = start.clone().requires_grad_();
    optim::SGD optimizer({w}, {.lr = 0.1, .momentum = 0.9});
    CapturedStep step([&](const Tensors& in) { return run(w, optimizer, in[0]); },
                      {.device = device});
    manual_seed(2);
    for (int i = 0; i < 6; ++i) {
      const Tensor x = randn({5, 8}, {.device = device});
      captured ? step({x}) : run(w, optimizer, x);
    }
    weights.push_back(w.detach().to_vector<float>());
    CHECK(step.captures() == records(device, captured ? 1 : 0));
  }
  CHECK(weights[0] == weights[1]);
}

TEST_CASE_TEMPLATE("captured step: each kind of inputs is recorded", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  Training eager(device), training(device);
  CapturedStep step = training.step();
  const std::vector<int64_t> sizes{3, 3, 3, 2, 3, 2, 2, 3, 1, 3};
  std::vector<std::vector<double>> losses(2);
  for (size_t run = 0; run < 2; ++run) {
    manual_seed(4);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Tensors inputs = batch(static_cast<int64_t>(i), device, sizes[i]);
      const Tensor loss = run == 0 ? eager.run(inputs)[0] : step(inputs);
      losses[run].push_back(loss.item<double>());
      if (run == 1 && i == 8) {
        CHECK(step.reason() == "the first call with these inputs runs eagerly");
      }
    }
  }
  CHECK(losses[0] == losses[1]);
  CHECK(training.numbers() == eager.numbers());
  CHECK(step.captures() == records(device, 2));
}

TEST_CASE_TEMPLATE("captured step: what cannot be recorded runs eagerly, and says why", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  Training eager(device), training(device);
  double seen = 0;
  const auto report = [&](const Tensors& inputs) {
    Tensors results = training.run(inputs);
    seen = results[0].item<double>();
    return results;
  };
  const auto drop = [&](const Tensors& in) {
    Generator own(3);
    return seeded_dropout(in[0], 0.5, own);
  };
  const auto schedule = [&](const Tensors& in) {
    training.optimizer.set_lr(1e-3);
    return training.run(in);
  };
  CapturedStep reporting(report, {.device = device});
  manual_seed(4);
  for (int i = 0; i < 5; ++i) eager.run(batch(i, device));
  manual_seed(4);
  for (int i = 0; i < 5; ++i) {
    CHECK(reporting(batch(i, device)).item<double>() == seen);
    if (i == 0) continue;
    CHECK(reporting.reason() ==
          (device.is_cuda()
               ? "copy: expected work that stays on cuda:0 during a capture, got a copy from "
                 "cuda:0 to cpu"
               : "begin_capture: the cpu backend runs work at once and cannot capture it"));
  }
  CHECK(training.numbers() == eager.numbers());
  CHECK(reporting.captures() == 0);

  CapturedStep dropping(drop, {.device = device});
  const Tensor x = ones({100}, {.device = device});
  CHECK(dropping({x}).to_vector<float>() == dropping({x}).to_vector<float>());
  CapturedStep scheduling(schedule, {.device = device});
  for (int i = 0; i < 3; ++i) scheduling(batch(i, device));
  if (device.is_cuda()) {
    CHECK(dropping.reason() ==
          "Generator: expected one from before while a graph is recorded, got one made meanwhile");
    CHECK(scheduling.reason() ==
          "AdamW.set_lr: expected rates set before the step while a graph is recorded, got one set "
          "in it");
  }
  CapturedStep off([](const Tensors& in) { return in[0] + 1; },
                   {.device = device, .capture = false});
  for (int i = 0; i < 3; ++i) off({x});
  CHECK(off.reason() == "capture is false");
  CHECK(off.captures() == 0);
  CapturedStep learning([](const Tensors& in) { return in[0].sum(); }, {.device = device});
  for (int i = 0; i < 3; ++i) learning({x.clone().requires_grad_()});
  CHECK(learning.reason() == "an input requires grad");
}

TEST_CASE_TEMPLATE("captured step: exceptions leave all as it was", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  Training eager(device), training(device);
  int calls = 0;
  bool broken = false;
  CapturedStep step(
      [&](const Tensors& inputs) {
        ++calls;
        training.optimizer.zero_grad();
        const Tensor loss = cross_entropy(training.model(inputs[0]), inputs[1]);
        loss.backward();
        // The first recording fails.
        if (broken || (device.is_cuda() && calls == 2)) throw std::runtime_error("broken");
        training.optimizer.step();
        return loss;
      },
      {.device = device});
  const auto run = [&](const Tensors& inputs) {
    eager.optimizer.zero_grad();
    const Tensor loss = cross_entropy(eager.model(inputs[0]), inputs[1]);
    loss.backward();
    eager.optimizer.step();
    return loss.item<double>();
  };
  std::vector<double> expected, found;
  manual_seed(4);
  for (int i = 0; i < 5; ++i) expected.push_back(run(batch(i, device)));
  manual_seed(4);
  for (int i = 0; i < 5; ++i) {
    found.push_back(step(batch(i, device)).item<double>());
    if (i == 1 && device.is_cuda()) CHECK(step.reason() == "broken");
  }
  CHECK(found == expected);
  CHECK(training.numbers() == eager.numbers());
  CHECK(step.captures() == records(device, 1));
  broken = true;
  step.reset();
  CHECK_THROWS_WITH_AS(step(batch(5, device)), "broken", std::runtime_error);
  broken = false;
  CHECK_NOTHROW(step(batch(5, device)));
  CHECK_THROWS_AS(step({Tensor()}), ValueError);
}

TEST_CASE_TEMPLATE("captured step: moved parameters and loaded states are noticed", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  Training eager(device), training(device);
  CapturedStep step = training.step();
  std::vector<std::vector<double>> losses(2);
  for (size_t run = 0; run < 2; ++run) {
    Training& t = run == 0 ? eager : training;
    manual_seed(4);
    StateDict saved;
    for (int i = 0; i < 10; ++i) {
      const Tensors inputs = batch(i, device);
      losses[run].push_back((run == 0 ? t.run(inputs)[0] : step(inputs)).item<double>());
      if (i == 3) {
        for (const auto& [key, x] : t.optimizer.state_dict()) saved.emplace_back(key, x.clone());
      }
      if (i == 5) t.optimizer.load_state_dict(saved);
      if (i == 7) {
        t.model.to(DType::float64);
        t.model.to(DType::float32);
      }
    }
  }
  CHECK(losses[0] == losses[1]);
  CHECK(training.numbers() == eager.numbers());
  CHECK(step.captures() == records(device, 3));
}

TEST_CASE_TEMPLATE("captured step: half parameters with masters, loss scaling, loaded weights", On,
                   Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  // The CPU's elementwise ops take no halves.
  const DType dtype = device.is_cuda() ? DType::float16 : DType::float32;
  std::vector<std::vector<double>> found(2);
  for (const bool captured : {false, true}) {
    manual_seed(1);
    Tensor w = randn({16, 16}, {.device = device}).to(dtype);
    w.requires_grad_();
    const Tensor other = w.detach() * 0.5;
    optim::AdamW optimizer({w}, {.lr = 1e-2, .master_weights = true, .max_grad_norm = 1.0});
    optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
    CapturedStep step(
        [&](const Tensors& in) {
          optimizer.zero_grad();
          const Tensor loss = mse_loss(dropout(matmul(in[0], w), 0.1), in[0]);
          scaler.scale(loss).backward();
          scaler.step(optimizer);
          scaler.update();
          return loss;
        },
        {.device = device, .capture = captured});
    for (int i = 0; i < 16; ++i) {
      Tensor x = randn({i % 3 == 2 ? 5 : 8, 16}, {.device = device});
      if (i == 9) x = x * 200;  // the loss and its gradients overflow
      found[captured].push_back(step({x.to(dtype)}).item<double>());
      if (i == 11) {  // eager steps would take the new weights into the masters
        const NoGradGuard no_grad;
        w.copy_(other);
      }
    }
    found[captured].push_back(scaler.get_scale());
    for (const float value : elements(w.detach().to(DType::float32))) {
      found[captured].push_back(static_cast<double>(value));
    }
    CHECK(step.captures() == records(device, captured ? 2 : 0));
  }
  CHECK(found[0] == found[1]);
}

TEST_CASE("captured step: an empty function is refused") {
  expect_error<ValueError>("CapturedStep: expected a function, got an empty one",
                           [] { CapturedStep step{CapturedStep::Function()}; });
  CapturedStep none([](const Tensors&) { return Tensors(); }, {.device = kCPU});
  expect_error<ValueError>(
      "CapturedStep: expected a function that returns the loss, got no tensors", [&] { none({}); });
}
