// A captured step whose model computes angles of positions, and replaces them for longer texts.
#include <doctest/doctest.h>

#include <vector>

#include <sash/nn/models/decoder.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/optim/captured_step.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;
using optim::CapturedStep;
using Tensors = std::vector<Tensor>;

TEST_CASE_TEMPLATE("captured step: a longer text between steps has angles of its own", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  constexpr int64_t kVocab = 19;
  const auto tokens = [&](int64_t number) {
    return (arange(3 * 24, {.device = device}) * (number + 1) % kVocab).view({3, 24});
  };
  const Tensor longer = zeros({1, 300}, {.dtype = DType::int64, .device = device});
  std::vector<std::vector<double>> losses(2);
  int64_t captures = 0;
  for (size_t run = 0; run < 2; ++run) {
    manual_seed(11);
    nn::Decoder model({.vocab = kVocab,
                       .dim = 32,
                       .heads = 2,
                       .layers = 2,
                       .attention = {{.rotary = nn::RotaryOptions{}}}});
    model.to(device);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    CapturedStep step(
        [&](const Tensors& inputs) -> Tensors {
          optimizer.zero_grad();
          const Tensor loss = cross_entropy(model(inputs[0]), inputs[1]);
          loss.backward();
          optimizer.step();
          return {loss};
        },
        {.device = device, .capture = run == 1});
    for (int i = 0; i < 6; ++i) {
      const Tensor loss = step({tokens(i), tokens(i + 1)});
      losses[run].push_back(loss.item<double>());
      if (i != 3) continue;
      const NoGradGuard no_grad;
      model(longer);
      // Would take the memory of angles that nobody keeps.
      Tensors others;
      for (int64_t size = 128; size <= 4096; size *= 2) {
        for (int k = 0; k < 8; ++k) others.push_back(full({size}, 7, {.device = device}));
      }
    }
    captures = step.captures();
  }
  CHECK(losses[0] == losses[1]);
  CHECK(captures == (device.is_cuda() ? 1 : 0));
}
