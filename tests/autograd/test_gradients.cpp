// First and second derivatives in float64 of fused ops and of compositions, on each device.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include <sash/sash.h>
#include <sash/tensor/autograd/gradcheck.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;

/// Makes the inputs of a check on one device.
struct Variables {
  Device device;

  Tensor operator()(const Shape& shape) const {
    return randn(shape, {.dtype = DType::float64, .device = device, .requires_grad = true});
  }
  Tensor indices(const std::vector<int64_t>& values, const Shape& shape) const {
    return tensor(values, shape, {.device = device});
  }
};

void check_gradients(const std::string& what, const Tensors& inputs, const Function& fn) {
  CAPTURE(what);
  const GradcheckReport first = gradcheck(fn, inputs, {.fast = short_tests()});
  CHECK_MESSAGE(first.ok, first.message());
  const GradcheckReport second = gradgradcheck(fn, inputs, {.fast = true});
  CHECK_MESSAGE(second.ok, second.message());
}

}  // namespace

TEST_CASE_TEMPLATE("gradients of fused ops: gradcheck in float64", On, Cpu, Cuda) {
  const Variables variable{On::device};
  if (missing(On::device)) return;
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
  const Tensor targets = variable.indices({1, -100, 4, 0}, {4});
  check_gradients("cross_entropy", {variable({4, 5})}, [&](const Tensors& x) {
    return cross_entropy(x[0], targets, {.label_smoothing = 0.1});
  });
  check_gradients("dropout", {variable({9})}, [](const Tensors& x) {
    manual_seed(22);
    return dropout(x[0], 0.4);
  });
  const Tensor rows = variable.indices({2, 0, 2, 1}, {2, 2});
  check_gradients("embedding", {variable({4, 3})},
                  [&](const Tensors& x) { return embedding(x[0], rows); });
  check_gradients("gather", {variable({3, 2})},
                  [&](const Tensors& x) { return gather(x[0], 0, rows); });
  check_gradients("cumsum", {variable({3, 4})}, [](const Tensors& x) { return cumsum(x[0], 0); });
}

TEST_CASE_TEMPLATE("gradients of attention: gradcheck in float64", On, Cpu, Cuda) {
  const Variables variable{On::device};
  if (missing(On::device)) return;
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
  const Tensor visible = ge(rand({3, 5}, {.device = On::device}), 0.3);
  check_gradients("masked attention", inputs,
                  with({.mask = AttentionMask(visible), .scale = {}, .dropout = 0}));
}

// The backward pass reads the log-sum-exp of the forward pass's scores, so it has to round alike.
TEST_CASE("gradients of attention: few queries with large scores, in float32") {
  const auto gradients = [](DType dtype, const Tensors& x, const AttentionOptions& options) {
    Tensors variables;
    for (size_t i = 0; i < 3; ++i) variables.push_back(x[i].to(dtype).detach().requires_grad_());
    return grad({attention(variables[0], variables[1], variables[2], options)}, variables,
                {x[3].to(dtype)});
  };
  const TensorOptions on{.dtype = DType::float32};
  for (const auto& mask : {AttentionMask(), AttentionMask::causal()}) {
    for (const auto& [depth, keys] : {std::pair{64, 40}, {64, 192}, {61, 192}, {64, 1}}) {
      for (const int64_t queries : {1, 5, 8}) {
        for (const double softcap : {0.0, 1e5}) {
          manual_seed(26);
          const int64_t d = depth, n = keys;
          // Scores are about 10,000, and differ by a few.
          const Tensors x{randn({1, 4, queries, d}, on) * 0.05 + 36,
                          randn({1, 2, n, d}, on) * 0.05 + 36, randn({1, 2, n, d}, on),
                          randn({1, 4, queries, d}, on)};
          const AttentionOptions options{.mask = mask, .softcap = softcap};
          CAPTURE(mask.to_string());
          CAPTURE(x[0].shape());
          CAPTURE(n);
          CAPTURE(softcap);
          const Tensors found = gradients(DType::float32, x, options);
          const Tensors expected = gradients(DType::float64, x, options);
          if (n > 1) CHECK(relative_error(found[0], expected[0]) < 0.02);
          CHECK(relative_error(found[2], expected[2]) < (n > 1 ? 0.02 : 1e-6));
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("gradients of compositions: gradcheck in float64", On, Cpu, Cuda) {
  const Variables variable{On::device};
  if (missing(On::device)) return;
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
  nn::TransformerEncoderLayer layer({.dim = 4, .heads = 2, .mlp_dim = 6, .dropout = 0});
  layer.to(DType::float64);
  layer.to(On::device);
  check_gradients("transformer layer", {variable({2, 3, 4})},
                  [&](const Tensors& x) { return layer(x[0], AttentionMask::causal()); });
}
