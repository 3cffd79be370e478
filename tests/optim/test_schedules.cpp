// Schedules with settings that make no sense.
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
      {"ValueError: Chained: expected schedules, got an empty function as part 1",
       [] {
         optim::Chained{{{optim::Constant{}, 10}, {optim::Schedule(), 10}}}(0);
       }},
  });
  const optim::WarmupCosine rises{.lr = 1, .warmup = 4, .total = 4, .floor = 0.25};
  CHECK(rises(3) == 1);
  CHECK(rises(4) == 0.25);
}
