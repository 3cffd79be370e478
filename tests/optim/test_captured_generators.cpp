// Random numbers of a captured step from generators of the caller's own.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/elementwise/dropout_state.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/captured_step.h>
#include <sash/tensor/autograd/recompute.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;
using optim::CapturedStep;
using Tensors = std::vector<Tensor>;

TEST_CASE_TEMPLATE("captured step: generators of the caller's own move on as in eager calls", On,
                   Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const Tensor x = ones({100}, {.device = device}).requires_grad_();
  // Masks of the device's generator, of a guard's around it or within, and of one by argument.
  const auto run = [&](bool capture, bool guarded) {
    manual_seed(3);
    Generator around(4), within(5), argument(6);
    const auto again = [&](const Tensor& a) { return seeded_dropout(a, 0.5, argument); };
    CapturedStep step(
        [&](const Tensors& in) {
          const Tensor first = dropout(x * in[0], 0.5);
          const GeneratorGuard guard(within);
          const Tensor second = checkpoint(again, dropout(first, 0.5));
          Tensor(x).zero_grad();
          second.sum().backward();
          return Tensors{first.detach(), second.detach(), x.grad()};
        },
        {.device = device, .capture = capture});
    std::vector<float> all;
    for (int i = 0; i < 6; ++i) {
      std::optional<GeneratorGuard> guard;
      if (guarded) guard.emplace(around);
      step({full({100}, i + 1, {.device = device})});
      for (const Tensor& y : step.results()) {
        const std::vector<float> part = y.to_vector<float>();
        all.insert(all.end(), part.begin(), part.end());
      }
      if (capture && i > 0 && device.is_cuda()) CHECK(step.reason() == "");
    }
    for (const RandomState& state :
         {random_state(device), around.state(), within.state(), argument.state()}) {
      all.push_back(static_cast<float>(state.offset));
    }
    CHECK(within.state().offset == 6 * 25);
    CHECK(argument.state().offset == 6 * 25);
    CHECK(around.state().offset == (guarded ? 6 * 25 : 0));
    CHECK(random_state(device).offset == (guarded ? 0 : 6 * 25));
    return all;
  };
  for (const bool guarded : {false, true}) CHECK(run(true, guarded) == run(false, guarded));
}
