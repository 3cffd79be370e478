// Gradients of a captured step, some of them branches of its graph, have the bits of eager's.
#include <doctest/doctest.h>

#include <vector>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/linalg/linear.h>
#include <sash/ops/linalg/linear_gelu.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/captured_step.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;
using optim::CapturedStep;
using Tensors = std::vector<Tensor>;

// Gradients of weights may be computed beside the rest of a recorded pass: of one that two layers
// share, with a hook, under an op of its own, of a bias that several rows of ops add to, and where
// `grad` asks for it.
TEST_CASE_TEMPLATE("captured step: weights used in every way have eager's gradients", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  constexpr int64_t kRows = 700, kDim = 64;
  manual_seed(3);
  const auto variable = [&](const Shape& shape) {
    return (randn(shape, {.device = device}) * 0.2).detach().requires_grad_();
  };
  Tensor shared = variable({kDim, kDim}), hooked = variable({kDim, kDim}),
         scaled = variable({kDim, kDim}), bias = variable({kDim}),
         wide = variable({4 * kDim, kDim}), wide_bias = variable({4 * kDim}),
         narrow = variable({kDim, 4 * kDim}), asked = variable({kDim, kDim});
  const Tensors weights{shared, hooked, scaled, bias, wide, wide_bias, narrow, asked};
  hooked.register_hook([](const Tensor& g) { return g * 2; });
  const auto run = [&](const Tensors& in) {
    for (Tensor weight : weights) weight.zero_grad();
    Tensor x = in[0];
    for (int layer = 0; layer < 3; ++layer) {
      x = linear(x, shared, bias);
      x = linear(x, hooked, bias);
      x = gelu_mlp(x, wide, wide_bias, narrow, bias);
      x = linear_gelu(x, scaled * 0.5, bias);
    }
    const Tensor loss = square(linear(x, asked)).mean();
    const Tensor g = grad({loss}, {asked}, {}, {.retain_graph = true})[0];
    loss.backward();
    Tensors all{loss, g};
    for (const Tensor& weight : weights) all.push_back(weight.grad().clone());
    return all;
  };
  CapturedStep step(run, {.device = device});
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    manual_seed(static_cast<uint64_t>(20 + i));
    const Tensor x = randn({kRows, kDim}, {.device = device});
    const Tensors expected = run({x});
    step({x});
    REQUIRE(step.results().size() == expected.size());
    for (size_t k = 0; k < expected.size(); ++k) {
      CAPTURE(k);
      CHECK(step.results()[k].to_vector<float>() == expected[k].to_vector<float>());
    }
    if (i > 0 && device.is_cuda()) CHECK(step.reason() == "");
  }
}
