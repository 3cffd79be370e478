// Layers within a checkpoint: the second run counts nothing.
#include <doctest/doctest.h>

#include <sash/nn/layers/batch_norm.h>
#include <sash/nn/layers/conv.h>
#include <sash/ops/attention/exact/attention_recorder.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/norm/batch_norm.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/tensor/autograd/recompute.h>
#include <sash/tensor/factories.h>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/scopes.h"

using namespace sash;
using namespace sash::testing;

namespace {

std::vector<double> values(const StateDict& tensors) {
  std::vector<double> all;
  for (const auto& [name, tensor] : tensors) {
    for (const double x : tensor.to(DType::float64).to_vector<double>()) all.push_back(x);
  }
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("checkpoint: running statistics are updated once", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const DefaultDevice scope(On::device);
  const auto train = [](bool recomputes, bool nested, DType dtype) {
    manual_seed(8);
    nn::BatchNorm2d norm(3), inner(3);
    norm.to(dtype), inner.to(dtype);
    const Tensor x = randn({4, 3, 5, 5}).to(dtype).requires_grad_();
    const auto deep = [&](const Tensor& t) { return inner(t * t); };
    const auto part = [&](const Tensor& t) {
      const Tensor y = norm(t);
      return nested && recomputes ? checkpoint(deep, y) : deep(y);
    };
    for (int step = 0; step < 3; ++step) {
      const Tensor y = recomputes ? checkpoint(part, x) : part(x);
      (y * y).sum().backward();
    }
    StateDict all{{"x", x.grad()}};
    for (const auto* module : {&norm, &inner}) {
      for (const auto& entry : module->state_dict()) all.push_back(entry);
      for (const Tensor& p : module->parameters()) all.emplace_back("gradient", p.grad());
    }
    CHECK(norm.num_batches_tracked.item<int64_t>() == 3);
    CHECK(inner.num_batches_tracked.item<int64_t>() == 3);
    return values(all);
  };
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const std::vector<double> plain = train(false, false, dtype);
    CHECK(train(true, false, dtype) == plain);
    CHECK(train(true, true, dtype) == plain);
  }
}

TEST_CASE("checkpoint: the op batch_norm leaves running statistics in the second run") {
  manual_seed(2);
  const Tensor x = randn({6, 2}, {.dtype = DType::float64}).requires_grad_();
  const TensorOptions wide{.dtype = DType::float64};
  const Tensor mean = zeros({2}, wide), var = ones({2}, wide);
  const Tensor y = checkpoint(
      [&](const Tensor& t) {
        return batch_norm(t, mean, var, {}, {}, {.training = true, .momentum = 0.5});
      },
      x);
  const std::vector<double> once = mean.to_vector<double>(), once_var = var.to_vector<double>();
  square(y).sum().backward();
  CHECK(mean.to_vector<double>() == once);
  CHECK(var.to_vector<double>() == once_var);
  CHECK_FALSE(recomputing());
}

TEST_CASE("checkpoint: recomputing, also after an error, and weights are recorded once") {
  manual_seed(2);
  const Tensor q = randn({1, 2, 4, 8}).requires_grad_();
  std::vector<bool> seen;
  const AttentionRecorder recorder;
  const auto part = [&](const Tensor& t) {
    seen.push_back(recomputing());
    return attention(t, t, t);
  };
  checkpoint(part, q).sum().backward();
  CHECK(seen == std::vector<bool>{false, true});
  CHECK(recorder.weights().size() == 1);
  int runs = 0;
  const auto bad = [&](const Tensor& t) {
    if (++runs == 2) throw ValueError("bad", "one run", "two");
    return t * 2;
  };
  const Tensor y = checkpoint(bad, q);
  CHECK_THROWS_AS(y.sum().backward(), ValueError);
  CHECK_FALSE(recomputing());
}
