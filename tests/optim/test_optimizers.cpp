// Lion, Muon, averages of parameters, and schedules that keep a state.
#include <doctest/doctest.h>

#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/adam.h>
#include <sash/optim/ema.h>
#include <sash/optim/lion.h>
#include <sash/optim/muon.h>
#include <sash/optim/optimizer.h>
#include <sash/optim/rmsprop.h>
#include <sash/optim/schedule.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <cmath>
#include <limits>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Values = std::vector<double>;

const TensorOptions kDouble{.dtype = DType::float64};

double norm_of(const Values& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

/// Plain loops over row-major matrices.
Values product(const Values& a, const Values& b, size_t m, size_t k, size_t n) {
  Values c(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t l = 0; l < k; ++l) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

Values transposed_of(const Values& a, size_t rows, size_t columns) {
  Values b(a.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) b[j * rows + i] = a[i * columns + j];
  }
  return b;
}

Values newton_schulz_of(Values x, size_t rows, size_t columns, int steps) {
  if (rows > columns) {
    const Values wide = newton_schulz_of(transposed_of(x, rows, columns), columns, rows, steps);
    return transposed_of(wide, columns, rows);
  }
  const double norm = std::max(norm_of(x), 1e-7);
  for (double& v : x) v /= norm;
  for (int step = 0; step < steps; ++step) {
    const Values a = product(x, transposed_of(x, rows, columns), rows, columns, rows);
    const Values square = product(a, a, rows, rows, rows);
    Values b(a.size());
    for (size_t i = 0; i < a.size(); ++i) b[i] = -4.775 * a[i] + 2.0315 * square[i];
    const Values bx = product(b, x, rows, rows, columns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + bx[i];
  }
  return x;
}

/// A parameter and the same in plain numbers; `step` sets the same random gradient on both.
struct Twin {
  Tensor p;
  Values x, g, m;

  Twin(const Shape& shape, Device device)
      : p(randn(shape, {.dtype = DType::float64, .device = device}).requires_grad_()),
        x(p.to_vector<double>()),
        m(x.size()) {}
  void draw() {
    const Tensor grad = randn(p.shape(), kDouble);
    g = grad.to_vector<double>();
    p.set_grad(grad.to(p.device()));
  }
  void check(double tolerance) const {
    const Values got = p.to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - x[i]) <= tolerance);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("Lion follows its formula for ten steps", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(1);
  Twin t({5, 7}, On::device);
  optim::Lion lion({t.p}, {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1});
  for (int step = 0; step < 10; ++step) {
    t.draw();
    lion.step();
    for (size_t i = 0; i < t.x.size(); ++i) {
      const double c = 0.8 * t.m[i] + 0.2 * t.g[i];
      t.x[i] = t.x[i] * (1 - 0.02 * 0.1) - 0.02 * static_cast<double>((c > 0) - (c < 0));
      t.m[i] = 0.95 * t.m[i] + 0.05 * t.g[i];
    }
  }
  t.check(1e-13);
  CHECK(find(lion.state_dict(), "state.0.exp_avg"));
  // A gradient of 0 moves nothing, NaN reaches the parameter.
  Tensor p = ones({2}, {.dtype = DType::float64, .device = On::device}).requires_grad_();
  optim::Lion fresh({p}, {.lr = 0.5});
  p.set_grad(tensor({0.0, std::nan("")}, {.dtype = DType::float64, .device = On::device}));
  fresh.step();
  CHECK(p.to_vector<double>()[0] == 1);
  CHECK(std::isnan(p.to_vector<double>()[1]));
}

TEST_CASE_TEMPLATE("Muon follows its formula for ten steps", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(2);
  // Two of one shape share a batch; tall and wide; AdamW for the vector.
  std::vector<Twin> twins;
  for (const Shape& shape : {Shape{6, 4}, Shape{3, 5}, Shape{6, 4}}) {
    twins.emplace_back(shape, On::device);
  }
  Twin vector({5}, On::device);
  Values second(5);
  const double lr = 0.02, momentum = 0.9, decay = 0.1;
  optim::Muon muon({{.parameters = {twins[0].p, twins[1].p, twins[2].p}},
                    {.parameters = {vector.p}, .weight_decay = 0.0, .ns_steps = 0}},
                   {.lr = lr, .weight_decay = decay, .momentum = momentum});
  for (int step = 1; step <= 10; ++step) {
    for (Twin& t : twins) t.draw();
    vector.draw();
    muon.step();
    for (Twin& t : twins) {
      Values direction(t.x.size());
      for (size_t i = 0; i < t.x.size(); ++i) {
        t.m[i] = momentum * t.m[i] + (1 - momentum) * t.g[i];
        direction[i] = (1 - momentum) * t.g[i] + momentum * t.m[i];
      }
      const auto rows = static_cast<size_t>(t.p.size(0)),
                 columns = static_cast<size_t>(t.p.size(1));
      const Values o = newton_schulz_of(direction, rows, columns, 5);
      const double size = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
      for (size_t i = 0; i < t.x.size(); ++i) {
        t.x[i] = t.x[i] * (1 - lr * decay) - lr * size * o[i];
      }
    }
    for (size_t i = 0; i < 5; ++i) {
      vector.m[i] = 0.9 * vector.m[i] + 0.1 * vector.g[i];
      second[i] = 0.999 * second[i] + 0.001 * vector.g[i] * vector.g[i];
      vector.x[i] -= lr * vector.m[i] / (1 - std::pow(0.9, step)) /
                     (std::sqrt(second[i] / (1 - std::pow(0.999, step))) + 1e-8);
    }
  }
  for (const Twin& t : twins) t.check(1e-10);
  vector.check(1e-12);
  const StateDict state = muon.state_dict();
  CHECK(find(state, "state.0.momentum_buffer"));
  CHECK(find(state, "state.3.exp_avg_sq"));
  CHECK(find(state, "param_groups.1.ns_steps")->item<double>() == 0);
  optim::Muon again({{.parameters = {twins[0].p, twins[1].p, twins[2].p}},
                     {.parameters = {vector.p}, .ns_steps = 0}});
  again.load_state_dict(state);
  CHECK(again.lr() == lr);
}

TEST_CASE_TEMPLATE("Newton-Schulz: singular values near 1, in every dtype", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  manual_seed(3);
  for (const Shape& shape : {Shape{8, 8}, Shape{4, 33}, Shape{2, 40, 16}}) {
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
      if (dtype == DType::bfloat16 && On::device.is_cpu()) continue;
      const Tensor g = randn(shape, {.dtype = dtype, .device = On::device});
      const Tensor o = optim::newton_schulz(g).to(DType::float64);
      const bool tall = o.size(-2) > o.size(-1);
      const Tensor gram = tall ? matmul(o.mT(), o) : matmul(o, o.mT());
      const int64_t n = gram.size(-1);
      // The mean of the squared singular values, and all of them together.
      const Tensor trace = sum(gram * eye(n, gram.options()), {-2, -1}) / static_cast<double>(n);
      const Tensor largest = amax(sum(abs(gram), {-1}), {-1});
      for (const double v : trace.to_vector<double>()) {
        CHECK(v > 0.5);
        CHECK(v < 1.4);
      }
      for (const double v : largest.to_vector<double>()) CHECK(v < 4);
    }
  }
  const Tensor zero = optim::newton_schulz(zeros({3, 4}));
  CHECK(zero.to_vector<float>() == std::vector<float>(12));
}

TEST_CASE("Muon trains a model by names, with AdamW for all but hidden matrices") {
  manual_seed(4);
  nn::Sequential model(nn::Linear(4, 16), nn::LayerNorm(16), nn::Linear(16, 16), nn::Linear(16, 1));
  optim::Muon muon(optim::param_groups(model, {{.pattern = "3\\..*|1\\..*|.*bias", .ns_steps = 0}}),
                   {.lr = 0.02});
  const Tensor x = randn({32, 4}), y = sum(x, {1}, true);
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    muon.zero_grad();
    const Tensor loss = square(model(x) - y).mean();
    loss.backward();
    muon.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  CHECK(last < first / 3);
}

TEST_CASE("EMA: averages, applied and put back") {
  Tensor p = full({2}, 1, kDouble).requires_grad_();
  Tensor half = full({2}, 1, {.dtype = DType::bfloat16}).requires_grad_();
  optim::EMA ema({p, half}, 0.75);
  CHECK(ema.averages()[1].dtype() == DType::float32);
  double average = 1;
  for (int step = 2; step <= 4; ++step) {
    p.detach().fill_(step);
    half.detach().fill_(step);
    ema.update();
    average = 0.75 * average + 0.25 * step;
  }
  ema.apply();
  CHECK(p.to_vector<double>() == Values(2, average));
  CHECK(p.requires_grad());
  ema.restore();
  CHECK(p.to_vector<double>() == Values(2, 4));
  CHECK(half.to_vector<double>() == Values(2, 4));
  CHECK(ema.averages()[1].to_vector<double>() == Values(2, average));

  optim::EMA other({p, half}, 0.75);
  other.load_state_dict(ema.state_dict());
  CHECK(other.averages()[0].to_vector<double>() == Values(2, average));
  // A parameter that is cast.
  nn::Linear layer(2, 2);
  optim::EMA follows(layer.parameters());
  layer.to(DType::float64);
  follows.update();
  CHECK(follows.averages()[0].dtype() == DType::float64);
  nn::Linear cast(1, 1, {.bias = false});
  optim::EMA loads(cast.parameters());
  cast.to(DType::float64);
  loads.load_state_dict({{"0", full({1, 1}, 0.1, kDouble)}});
  CHECK(loads.averages()[0].to_vector<double>() == Values{0.1});
}

TEST_CASE("schedules: warm-up, ends, state") {
  const optim::StepDecay steps{.lr = 1, .warmup = 2, .every = 3, .factor = 0.5};
  CHECK(steps(0) == 0.5);
  CHECK(steps(4) == 1);
  CHECK(steps(5) == 0.5);
  const optim::OneCycle cycle{.lr = 1, .total = 10};
  CHECK(cycle(0) == doctest::Approx(0.04));
  CHECK(cycle(2) == doctest::Approx(1));
  CHECK(cycle(9) == doctest::Approx(4e-6));
  CHECK(cycle(100) == cycle(9));
  optim::Plateau plateau{.lr = 1, .patience = 1, .maximize = true};
  CHECK(plateau(std::nan("")) == 1);
  CHECK(plateau(3) == 1);
  CHECK(plateau(3) == 1);
  CHECK(plateau(2) == doctest::Approx(0.1));
  CHECK(plateau.best == 3);
  Tensor a = ones({1}).requires_grad_(), b = ones({1}).requires_grad_();
  optim::SGD sgd({{.parameters = {a}}, {.parameters = {b}, .lr = 0.1}}, {.lr = 1});
  optim::LambdaLR rates(sgd, [](int64_t step) { return step == 0 ? 1.0 : 0.5; });
  rates.set(3);
  CHECK(sgd.lr(0) == 0.5);
  CHECK(sgd.lr(1) == doctest::Approx(0.05));
}

TEST_CASE("LambdaLR starts from the first rates, whatever was loaded before it") {
  Tensor a = ones({1}).requires_grad_(), b = ones({1}).requires_grad_();
  const auto make = [&](double lr) {
    return optim::SGD({{.parameters = {a}}, {.parameters = {b}, .lr = 0.5}}, {.lr = lr});
  };
  const auto half = [](int64_t step) { return std::pow(0.5, static_cast<double>(step)); };
  optim::SGD first = make(1);
  CHECK_FALSE(find(first.state_dict(), "param_groups.0.initial_lr"));
  optim::LambdaLR rates(first, half);
  rates.set(2);
  optim::SGD resumed = make(3);
  resumed.load_state_dict(first.state_dict());
  CHECK(resumed.lr(0) == 0.25);
  optim::LambdaLR rest(resumed, half);
  rates.set(3);
  rest.set(3);
  for (size_t group = 0; group < 2; ++group) CHECK(resumed.lr(group) == first.lr(group));
  CHECK(resumed.lr(0) == 0.125);
  // A rate that is set by hand is a new start, as is a state without a first rate.
  resumed.set_lr(4, 0);
  optim::LambdaLR(resumed, half).set(1);
  CHECK(resumed.lr(0) == 2);
  CHECK(resumed.lr(1) == 0.25);
  resumed.load_state_dict(make(8).state_dict());
  optim::LambdaLR(resumed, half).set(1);
  CHECK(resumed.lr(0) == 4);
  StateDict bad = first.state_dict();
  for (auto& [key, tensor] : bad) {
    if (key == "param_groups.1.initial_lr") tensor = scalar_tensor(-1.0);
  }
  expect_error<ValueError>(
      "SGD.load_state_dict: expected a finite initial_lr of at least 0, got -1",
      [&] { resumed.load_state_dict(bad); });
}

TEST_CASE("LambdaLR follows a state that is loaded, and a group that is added, after it was made") {
  Tensor a = ones({1}).requires_grad_(), b = ones({1}).requires_grad_();
  const auto half = [](int64_t step) { return std::pow(0.5, static_cast<double>(step)); };
  optim::SGD first({a}, {.lr = 1}), resumed({a}, {.lr = 3});
  optim::LambdaLR rates(first, half), rest(resumed, half);
  rates.set(2);
  resumed.load_state_dict(first.state_dict());
  rest.set(3);
  CHECK(resumed.lr() == 0.125);
  resumed.add_param_group({.parameters = {b}, .lr = 0.5});
  for (const int64_t step : {1, 2}) {
    rest.set(step);
    CHECK(resumed.lr(0) == half(step));
    CHECK(resumed.lr(1) == half(step) / 2);
  }
}

TEST_CASE("LambdaLR follows a state that was saved before its first set") {
  Tensor a = ones({1}).requires_grad_();
  const auto half = [](int64_t step) { return std::pow(0.5, static_cast<double>(step)); };
  optim::SGD first({a}, {.lr = 1}), resumed({a}, {.lr = 3});
  optim::LambdaLR rates(first, half), rest(resumed, half);
  rest.set(1);
  resumed.load_state_dict(first.state_dict());
  for (const int64_t step : {0, 1}) {
    rates.set(step);
    rest.set(step);
    CHECK(first.lr() == half(step));
    CHECK(resumed.lr() == half(step));
  }
}

TEST_CASE("Muon refuses a saved state that would train a vector as a matrix") {
  Tensor v = ones({3}).requires_grad_();
  optim::Muon muon(std::vector<optim::ParamGroup>{{.parameters = {v}, .ns_steps = 0}});
  StateDict dict = muon.state_dict();
  for (auto& [key, tensor] : dict) {
    if (key == "param_groups.0.ns_steps") tensor = scalar_tensor(5.0);
  }
  expect_error<ValueError>(
      "Muon.load_state_dict: expected matrices (put other parameters into a group with ns_steps = "
      "0), got a "
      "parameter [3]",
      [&] { muon.load_state_dict(dict); });
  v.set_grad(ones({3}));
  muon.step();
}

// clang-format off
TEST_CASE("wrong calls: Lion, RMSprop, Muon, averages and schedules") {
  const Tensor a = ones({2, 2}).requires_grad_(), b = ones({3}).requires_grad_();
  const std::vector<Tensor> one{a};
  optim::Muon muon(one);
  optim::SGD sgd(one);
  optim::EMA ema(one), applied(one);
  applied.apply();
  expect_errors({
      {"ValueError: Lion: expected parameters, got none", [] { optim::Lion(std::vector<Tensor>{}); }},
      {"ValueError: Lion: expected beta1 in [0, 1), got 1", [&] { optim::Lion(one, {.beta1 = 1}); }},
      {"ValueError: Lion: expected beta2 in [0, 1), got -0.1", [&] { optim::Lion(one, {.beta2 = -0.1}); }},
      {"ValueError: Lion: expected a finite lr of at least 0, got -1", [&] { optim::Lion(one, {.lr = -1}); }},
      {"ValueError: Lion: expected a finite weight_decay of at least 0, got -1",
       [&] { optim::Lion(one, {.weight_decay = -1}); }},
      {"ValueError: Lion: expected a max_grad_norm of at least 0, got -1",
       [&] { optim::Lion(one, {.max_grad_norm = -1}); }},
      {"ValueError: Lion: expected no eps in a group, got 0", [&] { optim::Lion({{.parameters = one, .eps = 0.0}}); }},
      {"ValueError: Lion: expected no momentum in a group, got 0.9",
       [&] { optim::Lion({{.parameters = one, .momentum = 0.9}}); }},
      {"ValueError: RMSprop: expected parameters, got none", [] { optim::RMSprop(std::vector<Tensor>{}); }},
      {"ValueError: RMSprop: expected alpha in [0, 1), got 1", [&] { optim::RMSprop(one, {.alpha = 1}); }},
      {"ValueError: RMSprop: expected alpha in [0, 1), got nan", [&] { optim::RMSprop(one, {.alpha = std::nan("")}); }},
      {"ValueError: RMSprop: expected a finite eps of at least 0, got -1", [&] { optim::RMSprop(one, {.eps = -1}); }},
      {"ValueError: RMSprop: expected a finite momentum of at least 0, got -0.5",
       [&] { optim::RMSprop(one, {.momentum = -0.5}); }},
      {"ValueError: RMSprop: expected no beta1 in a group, got 0.5",
       [&] { optim::RMSprop({{.parameters = one, .beta1 = 0.5}}); }},
      {"ValueError: RMSprop: expected each parameter once, got one twice",
       [&] { optim::RMSprop(std::vector<Tensor>{a, a}); }},
      {"ValueError: Muon: expected parameters, got none", [] { optim::Muon(std::vector<Tensor>{}); }},
      {"ValueError: Muon: expected matrices (put other parameters into a group with ns_steps = 0), got a parameter [3]",
       [&] { optim::Muon(std::vector<Tensor>{a, b}); }},
      {"ValueError: Muon: expected matrices (put other parameters into a group with ns_steps = 0), got a parameter [3]",
       [&] { muon.add_param_group({.parameters = {b}}); }},
      {"ValueError: Muon: expected momentum in [0, 1), got 1", [&] { optim::Muon(one, {.momentum = 1}); }},
      {"ValueError: Muon: expected beta1 in [0, 1), got 2", [&] { optim::Muon(one, {.beta1 = 2}); }},
      {"ValueError: Muon: expected a whole number of ns_steps, got -1", [&] { optim::Muon(one, {.ns_steps = -1}); }},
      {"ValueError: Muon: expected a whole number of ns_steps, got -2",
       [&] { muon.add_param_group({.parameters = {b}, .ns_steps = -2}); }},
      {"ValueError: AdamW: expected no ns_steps in a group, got 0",
       [&] { optim::AdamW({{.parameters = one, .ns_steps = 0}}); }},
      {"IndexError: Muon.lr: expected a group below 1, got 1", [&] { muon.lr(1); }},
      {"ShapeError: newton_schulz: expected at least 2 axes, got [3]", [&] { optim::newton_schulz(b); }},
      {"ValueError: newton_schulz: expected a number of steps of at least 0, got -1",
       [&] { optim::newton_schulz(a, -1); }},
      {"DTypeError: newton_schulz: expected a floating dtype, got int64",
       [] { optim::newton_schulz(zeros({2, 2}, {.dtype = DType::int64})); }},
      {"ValueError: newton_schulz: expected a tensor, got an undefined tensor", [] { optim::newton_schulz(Tensor()); }},
      {"ValueError: EMA: expected parameters, got none", [] { optim::EMA(std::vector<Tensor>{}); }},
      {"ValueError: EMA: expected parameters, got an undefined tensor", [] { optim::EMA(std::vector<Tensor>{Tensor()}); }},
      {"DTypeError: EMA: expected a floating dtype, got int64",
       [] { optim::EMA(std::vector<Tensor>{zeros({2}, {.dtype = DType::int64})}); }},
      {"ValueError: EMA: expected a decay in [0, 1], got 1.5", [&] { optim::EMA(one, 1.5); }},
      {"ValueError: EMA: expected a decay in [0, 1], got -0.5", [&] { optim::EMA(one, -0.5); }},
      {"ValueError: EMA.restore: expected applied averages, got none", [&] { ema.restore(); }},
      {"ValueError: EMA.apply: expected restored parameters, got applied averages", [&] { applied.apply(); }},
      {"ValueError: EMA.update: expected restored parameters, got applied averages", [&] { applied.update(); }},
      {"ValueError: EMA.load_state_dict: missing 0; unexpected a", [&] { ema.load_state_dict({{"a", a}}); }},
      {"ValueError: EMA.load_state_dict: mismatched 0 (expected shape [2, 2], got [3])",
       [&] { ema.load_state_dict({{"0", b}}); }},
      {"ValueError: Chained: expected a schedule, got none", [] { optim::Chained{}(0); }},
      {"ValueError: LambdaLR: expected a function, got an empty one", [&] { optim::LambdaLR(sgd, {}); }},
      {"ValueError: SGD.set_lr: expected a finite lr of at least 0, got -1",
       [&] { optim::LambdaLR(sgd, [](int64_t) { return -1e3; }).set(0); }},
  });
  CHECK(muon.num_groups() == 1);
}
// clang-format on

TEST_CASE("optimizers: a learning rate alone") {
  const auto rate = [](auto make) {
    return make(std::vector{zeros({2, 2}, {.requires_grad = true})}).lr();
  };
  CHECK(rate([](auto p) { return optim::SGD(p, 0.25); }) == 0.25);
  CHECK(rate([](auto p) { return optim::Adam(p, 0.25); }) == 0.25);
  CHECK(rate([](auto p) { return optim::AdamW(p, 0.25); }) == 0.25);
  CHECK(rate([](auto p) { return optim::RMSprop(p, 0.25F); }) == 0.25);
  CHECK(rate([](auto p) { return optim::Lion(p, 0.25); }) == 0.25);
  CHECK(rate([](auto p) { return optim::Muon(p, 0.25); }) == 0.25);
  CHECK(rate([](auto p) { return optim::Adam(p, {}); }) == optim::AdamOptions{}.lr);
}
