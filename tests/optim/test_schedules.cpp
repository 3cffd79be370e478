// Schedules with settings that make no sense.
#include <vector>

#include <doctest/doctest.h>

#include <sash/optim/schedule.h>

#include "../support/expect_error.h"

using namespace sash;
using namespace sash::testing;

TEST_CASE("schedules: settings that make no sense are errors at the first step") {
  expect_errors({
      {"ValueError: LinearDecay: expected a total of at least 1, got 0",
       [] { optim::LinearDecay{.lr = 1}(0); }},
      {"ValueError: WarmupCosine: expected a total of at least 1, got 0",
       [] { optim::WarmupCosine{.lr = 3e-4}(0); }},
      {"ValueError: WarmupCosine: expected a total of at least 1, got -5",
       [] { optim::WarmupCosine{.lr = 3e-4, .total = -5}(0); }},
      {"ValueError: WarmupStableDecay: expected a total of at least 1, got 0",
       [] { optim::WarmupStableDecay{.lr = 1, .decay = 3}(0); }},
      {"ValueError: OneCycle: expected a total of at least 1, got 0",
       [] { optim::OneCycle{.lr = 1}(0); }},
      {"ValueError: LinearDecay: expected a warmup of at most total, 5, got 6",
       [] { optim::LinearDecay{.lr = 1, .warmup = 6, .total = 5}(0); }},
      {"ValueError: WarmupCosine: expected a warmup of at most total, 5, got 100",
       [] { optim::WarmupCosine{.lr = 1, .warmup = 100, .total = 5}(0); }},
      {"ValueError: WarmupStableDecay: expected a warmup of at most total, 5, got 100",
       [] { optim::WarmupStableDecay{.lr = 1, .warmup = 100, .total = 5}(0); }},
      {"ValueError: StepDecay: expected an every of at least 1, got 0",
       [] { optim::StepDecay{.lr = 1, .every = 0}(0); }},
      {"ValueError: StepDecay: expected an every of at least 1, got -5",
       [] { optim::StepDecay{.lr = 1, .warmup = 2, .every = -5}(0); }},
      {"ValueError: LinearDecay: expected a warmup of at least 0, got -5",
       [] { optim::LinearDecay{.lr = 1, .warmup = -5, .total = 10}(0); }},
      {"ValueError: ExponentialDecay: expected a warmup of at least 0, got -1",
       [] { optim::ExponentialDecay{.lr = 1, .warmup = -1}(0); }},
      {"ValueError: StepDecay: expected a warmup of at least 0, got -1",
       [] { optim::StepDecay{.lr = 1, .warmup = -1}(0); }},
      {"ValueError: WarmupStableDecay: expected a decay of at least 0, got -5",
       [] { optim::WarmupStableDecay{.lr = 1, .total = 10, .decay = -5}(0); }},
      {"ValueError: OneCycle: expected a rise in [0, 1], got 1.5",
       [] { optim::OneCycle{.lr = 1, .total = 10, .rise = 1.5}(0); }},
      {"ValueError: OneCycle: expected a start_factor above 0, got 0",
       [] { optim::OneCycle{.lr = 1, .total = 10, .start_factor = 0}(0); }},
      {"ValueError: OneCycle: expected an end_factor above 0, got 0",
       [] { optim::OneCycle{.lr = 1, .total = 10, .end_factor = 0}(0); }},
      {"ValueError: Plateau: expected a factor in [0, 1), got 10",
       [] { optim::Plateau{.factor = 10}(1.0); }},
      {"ValueError: Plateau: expected a patience of at least 0, got -3",
       [] { optim::Plateau{.patience = -3}(1.0); }},
      {"ValueError: Plateau: expected a cooldown of at least 0, got -1",
       [] { optim::Plateau{.cooldown = -1}(1.0); }},
      {"ValueError: Plateau: expected a threshold of at least 0, got -0.1",
       [] { optim::Plateau{.threshold = -0.1}(1.0); }},
      {"ValueError: Constant: expected a warmup of at least 0, got -5",
       [] { optim::Constant{.lr = 1, .warmup = -5}(0); }},
      {"ValueError: Chained: expected a number of steps of at least 0, got -5",
       [] {
         optim::Chained{{{optim::Constant{}, -5}, {optim::Constant{}, 10}}}(0);
       }},
      {"ValueError: Chained: expected a number of steps of at least 0, got -1",
       [] {
         optim::Chained{{{optim::Constant{}, 5}, {optim::Constant{}, -1}}}(0);
       }},
      {"ValueError: Chained: expected schedules, got an empty function as part 1",
       [] {
         optim::Chained{{{optim::Constant{}, 10}, {optim::Schedule(), 10}}}(0);
       }},
  });
  const optim::WarmupCosine rises{.lr = 1, .warmup = 4, .total = 4, .floor = 0.25};
  CHECK(rises(3) == 1);
  CHECK(rises(4) == 0.25);
  const optim::Chained skips{{{optim::Constant{.lr = 1}, 0}, {optim::Constant{.lr = 2}, 0}}};
  CHECK(skips(0) == 2);
}

TEST_CASE("StepDecay counts from the end of the warm-up") {
  const optim::StepDecay schedule{.lr = 1, .warmup = 2, .every = 3, .factor = 0.5};
  std::vector<double> rates;
  for (int64_t step = 0; step < 9; ++step) rates.push_back(schedule(step));
  CHECK(rates == std::vector<double>{0.5, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25});
}

TEST_CASE("Plateau: better is beyond the threshold, also of a negative figure") {
  // The rates after each figure, from 1 on, halved.
  const auto rates = [](std::vector<double> figures, bool maximize, double threshold) {
    optim::Plateau plateau{
        .lr = 1, .factor = 0.5, .patience = 0, .threshold = threshold, .maximize = maximize};
    for (double& figure : figures) figure = plateau(figure);
    return figures;
  };
  using Rates = std::vector<double>;
  for (const double sign : {1.0, -1.0}) {
    CAPTURE(sign);
    const bool maximize = sign < 0;  // of the figures' negatives all is the same
    const auto of = [&](Rates figures, double threshold = 1e-4) {
      for (double& figure : figures) figure *= sign;
      return rates(figures, maximize, threshold);
    };
    CHECK(of({-1, -1, -1}) == Rates{1, 0.5, 0.25});
    CHECK(of({-1, -0.9, -0.8}, 0.2) == Rates{1, 0.5, 0.25});
    CHECK(of({-1, -1.05, -1.09}, 0.1) == Rates{1, 0.5, 0.25});
    CHECK(of({-1, -1.125, -1.25}, 0.1) == Rates{1, 1, 1});
    CHECK(of({1, 1, 0.9375, 0.75}, 0.1) == Rates{1, 0.5, 0.25, 0.25});
    CHECK(of({0, 0, -1, -1}) == Rates{1, 0.5, 0.5, 0.25});
    CHECK(of({1, -1, -2}) == Rates{1, 1, 1});
  }
}
