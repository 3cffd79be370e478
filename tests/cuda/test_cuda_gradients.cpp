// Gradients in float64 on a card, and operands on several devices.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <sash/core/error.h>
#include <sash/sash.h>
#include <sash/tensor/autograd/gradcheck.h>

#include "../support/cuda_device.h"
#include "../support/expect_error.h"

using namespace sash;
using sash::testing::expect_error;

namespace {

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;

Tensor variable(const Shape& shape) {
  return randn(shape, {.dtype = DType::float64, .device = kCUDA, .requires_grad = true});
}

Tensor indices(const std::vector<int64_t>& values, const Shape& shape) {
  return tensor(values, shape, {.device = kCUDA});
}

void check_gradients(const std::string& what, const Tensors& inputs, const Function& fn) {
  CAPTURE(what);
  const GradcheckReport first = gradcheck(fn, inputs, {.fast = short_tests()});
  CHECK_MESSAGE(first.ok, first.message());
  const GradcheckReport second = gradgradcheck(fn, inputs, {.fast = true});
  CHECK_MESSAGE(second.ok, second.message());
}

}  // namespace

TEST_CASE("cuda gradients of fused ops: gradcheck in float64") {
  if (cuda_missing()) return;
  manual_seed(21);
  check_gradients("softmax", {variable({3, 5})}, [](const Tensors& x) { return softmax(x[0]); });
  check_gradients("softmax of columns", {variable({3, 5})},
                  [](const Tensors& x) { return softmax(x[0], 0); });
  check_gradients("log_softmax", {variable({3, 5})},
                  [](const Tensors& x) { return log_softmax(x[0]); });
  check_gradients("layer_norm", {variable({3, 5}), variable({5}), variable({5})},
                  [](const Tensors& x) { return layer_norm(x[0], {5}, x[1], x[2]); });
  check_gradients("gelu", {variable({7})}, [](const Tensors& x) { return gelu(x[0]); });
  check_gradients("gelu by tanh", {variable({7})},
                  [](const Tensors& x) { return gelu(x[0], GeluApproximation::tanh); });
  check_gradients("linear", {variable({2, 3, 4}), variable({5, 4}), variable({5})},
                  [](const Tensors& x) { return linear(x[0], x[1], x[2]); });
  check_gradients("matmul", {variable({2, 3, 4}), variable({4, 2})},
                  [](const Tensors& x) { return matmul(x[0], x[1]); });
  check_gradients("mse_loss", {variable({3, 4}), variable({3, 4})},
                  [](const Tensors& x) { return mse_loss(x[0], x[1]); });
  const Tensor targets = indices({1, -100, 4, 0}, {4});
  check_gradients("cross_entropy", {variable({4, 5})}, [&](const Tensors& x) {
    return cross_entropy(x[0], targets, {.label_smoothing = 0.1});
  });
  check_gradients("dropout", {variable({9})}, [](const Tensors& x) {
    manual_seed(22);
    return dropout(x[0], 0.4);
  });
  const Tensor rows = indices({2, 0, 2, 1}, {2, 2});
  check_gradients("embedding", {variable({4, 3})},
                  [&](const Tensors& x) { return embedding(x[0], rows); });
  check_gradients("gather", {variable({3, 2})},
                  [&](const Tensors& x) { return gather(x[0], 0, rows); });
  check_gradients("cumsum", {variable({3, 4})}, [](const Tensors& x) { return cumsum(x[0], 0); });
}

TEST_CASE("cuda gradients of attention: gradcheck in float64") {
  if (cuda_missing()) return;
  manual_seed(23);
  const Tensors inputs = {variable({1, 4, 3, 2}), variable({1, 2, 5, 2}), variable({1, 2, 5, 3})};
  const auto with = [](const AttentionOptions& options) {
    return [options](const Tensors& x) {
      manual_seed(24);
      return attention(x[0], x[1], x[2], options);
    };
  };
  check_gradients("attention", inputs, with({}));
  check_gradients("causal attention", inputs,
                  with({.mask = AttentionMask::causal(), .scale = 0.7, .dropout = 0}));
  check_gradients("attention with dropout", inputs,
                  with({.mask = {}, .scale = {}, .dropout = 0.3}));
  const Tensor visible = ge(rand({3, 5}, {.device = kCUDA}), 0.3);
  check_gradients("masked attention", inputs,
                  with({.mask = AttentionMask(visible), .scale = {}, .dropout = 0}));
}

TEST_CASE("cuda gradients of compositions: gradcheck in float64") {
  if (cuda_missing()) return;
  manual_seed(25);
  check_gradients("normalised rows", {variable({3, 4})}, [](const Tensors& x) {
    return x[0] * rsqrt(sum(square(x[0]), {1}, true) + 1e-3);
  });
  check_gradients("logsumexp of a view", {variable({4, 3})},
                  [](const Tensors& x) { return logsumexp(x[0].mT().slice(1, 0, {}, 2), {0}); });
  check_gradients("broadcast", {variable({2, 1, 3}), variable({4, 1})},
                  [](const Tensors& x) { return tanh(x[0] * x[1]) / (1 + exp(x[1])); });
  check_gradients("cat, where and max", {variable({2, 3}), variable({2, 3})}, [](const Tensors& x) {
    const Tensor chosen = where(gt(x[0], 0), x[0], x[1] * 2);
    return cat({amax(chosen, {1}), maximum(x[0], x[1]).mean({0})}, 0);
  });
  const Tensor target = variable({4, 2}).detach();
  check_gradients("perceptron",
                  {variable({4, 3}), variable({5, 3}), variable({5}), variable({2, 5})},
                  [&](const Tensors& x) {
                    return mse_loss(linear(gelu(linear(x[0], x[1], x[2])), x[3]), target);
                  });
  nn::TransformerEncoderLayer layer({.dim = 4, .heads = 2, .feedforward = 6, .dropout = 0});
  layer.to(DType::float64);
  layer.to(kCUDA);
  check_gradients("transformer layer", {variable({2, 3, 4})},
                  [&](const Tensors& x) { return layer(x[0], AttentionMask::causal()); });
}

TEST_CASE("cuda training: operands on two devices are refused by name") {
  if (cuda_missing()) return;
  const TensorOptions cpu{.device = kCPU}, cuda{.device = kCUDA};
  const Tensor here = ones({4, 4}, cpu), there = ones({4, 4}, cuda);
  const std::string one = ": expected tensors on one device, got ";
  expect_error<DeviceError>("matmul" + one + "cuda:0 and cpu", [&] { matmul(there, here); });
  expect_error<DeviceError>("linear" + one + "cpu and cuda:0", [&] { linear(here, there); });
  expect_error<DeviceError>("linear" + one + "cuda:0 and cpu",
                            [&] { linear(there, there, ones({4}, cpu)); });
  expect_error<DeviceError>("layer_norm" + one + "cuda:0 and cpu",
                            [&] { layer_norm(there, {4}, ones({4}, cpu)); });
  expect_error<DeviceError>("mse_loss" + one + "cuda:0 and cpu", [&] { mse_loss(there, here); });
  expect_error<DeviceError>("add_" + one + "cpu and cuda:0", [&] { here.clone().add_(there); });
  expect_error<DeviceError>("where" + one + "cpu and cuda:0",
                            [&] { where(gt(here, 0), there, there); });
  expect_error<DeviceError>("cat" + one + "cpu and cuda:0", [&] { cat({here, there}); });
  const Tensor index = zeros({4}, {.dtype = DType::int64, .device = kCPU});
  expect_error<DeviceError>("cross_entropy" + one + "cuda:0 and cpu",
                            [&] { cross_entropy(there, index); });
  expect_error<DeviceError>("embedding" + one + "cuda:0 and cpu", [&] { embedding(there, index); });
  const Tensor q = ones({1, 1, 4, 4}, cuda), k = ones({1, 1, 4, 4}, cpu);
  expect_error<DeviceError>("attention" + one + "cuda:0 and cpu", [&] { attention(q, k, q); });
  expect_error<DeviceError>("attention" + one + "cuda:0 and cpu", [&] {
    attention(q, q, q, {.mask = AttentionMask(gt(here, 0)), .scale = {}, .dropout = 0});
  });
}

TEST_CASE("cuda training: an optimizer refuses a group on two devices, and takes two groups") {
  if (cuda_missing()) return;
  const auto parameter = [](Device device) {
    Tensor p = ones({3}, {.device = device, .requires_grad = true});
    p.set_grad(ones({3}, {.device = device}));
    return p;
  };
  const Tensor here = parameter(kCPU), there = parameter(kCUDA);
  const Tensors both = {here, there};
  optim::AdamW mixed(both);
  expect_error<DeviceError>(
      "AdamW.step: expected the parameters of a group on one device, got cpu and cuda:0",
      [&] { mixed.step(); });
  expect_error<DeviceError>("global_norm: expected tensors on one device, got cpu and cuda:0",
                            [&] { optim::clip_grad_norm_(both, 1.0); });
  expect_error<DeviceError>("set_grad: expected a gradient on cuda:0, got cpu",
                            [&] { Tensor(there).set_grad(here.detach()); });
  CHECK(here.to_vector<float>() == std::vector<float>(3, 1));
  CHECK(there.to_vector<float>() == std::vector<float>(3, 1));
  optim::AdamW apart(
      std::vector<optim::ParamGroup>{{.parameters = {here}, .lr = {}, .weight_decay = {}},
                                     {.parameters = {there}, .lr = {}, .weight_decay = {}}});
  apart.step();
  const std::vector<float> a = here.to_vector<float>(), b = there.to_vector<float>();
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i] < 1);
    CHECK(b[i] == doctest::Approx(a[i]).epsilon(1e-6));
  }
}
