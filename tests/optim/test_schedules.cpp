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
      {"ValueError: Chained: expected schedules, got an empty function as part 1",
       [] {
         optim::Chained{{{optim::Constant{}, 10}, {optim::Schedule(), 10}}}(0);
       }},
  });
  const optim::WarmupCosine rises{.lr = 1, .warmup = 4, .total = 4, .floor = 0.25};
  CHECK(rises(3) == 1);
  CHECK(rises(4) == 0.25);
}
