// A residual branch's end: the fused op against dropout, + and layer_norm, to the bit on the CPU.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <sash/core/parallel.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/norm/dropout_add_layer_norm.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

/// What a step reads and gives: branch, residual, weight and bias; sum, norm and gradients.
struct Problem {
  double p;
  std::vector<Tensor> inputs;
  Tensor dsum, dnorm;

  Problem(const Shape& shape, double probability) : p(probability) {
    const Shape row{shape.back()};
    for (const Shape& s : {shape, shape, row, row}) inputs.push_back(randn(s).requires_grad_());
    dsum = randn(shape);
    dnorm = randn(shape);
  }

  std::vector<std::vector<float>> results(bool fused) const {
    manual_seed(3);
    const Tensor &branch = inputs[0], &residual = inputs[1], &weight = inputs[2], &bias = inputs[3];
    SumAndNorm y;
    if (fused) {
      y = dropout_add_layer_norm(branch, residual, weight, bias, p);
    } else {
      y.sum = residual + dropout(branch, p);
      y.norm = layer_norm(y.sum, weight.shape(), weight, bias);
    }
    std::vector<std::vector<float>> all{y.sum.to_vector<float>(), y.norm.to_vector<float>()};
    for (const Tensor& g : grad({y.sum, y.norm}, inputs, {dsum, dnorm})) {
      all.push_back(g.to_vector<float>());
    }
    return all;
  }
};

}  // namespace

TEST_CASE("dropout_add_layer_norm: the bits of its three ops, for any number of threads") {
  const int before = num_threads();
  for (const Shape& shape : {Shape{5, 7}, Shape{2, 130, 64}, Shape{300, 129}, Shape{40, 1030}}) {
    for (const double p : {0.0, 0.1}) {
      CAPTURE(to_string(shape));
      CAPTURE(p);
      const Problem problem(shape, p);
      set_num_threads(1);
      const auto plain = problem.results(false);
      CHECK(problem.results(true) == plain);
      set_num_threads(3);
      CHECK(problem.results(true) == plain);
    }
  }
  set_num_threads(before);
}

TEST_CASE_TEMPLATE("dropout_add_layer_norm: dropout of many rows, forward and backward", On, Cpu,
                   Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    for (const int64_t columns : {8, 136, 256, 1000, 1001}) {
      CAPTURE(name(dtype));
      CAPTURE(columns);
      const Shape shape{4101, columns};
      const TensorOptions options{.dtype = dtype, .device = device};
      manual_seed(5);
      const Tensor branch = ones(shape, options).requires_grad_();
      const Tensor residual = zeros(shape, options).requires_grad_(), g = randn(shape, options);
      manual_seed(6);
      const SumAndNorm y = dropout_add_layer_norm(branch, residual, {}, {}, 0.5);
      manual_seed(6);
      const SumAndNorm again = [&] {
        const NoGradGuard no_grad;
        return dropout_add_layer_norm(branch, residual, {}, {}, 0.5);
      }();
      CHECK(eq(y.sum, again.sum).all().item<bool>());
      CHECK(eq(y.norm, again.norm).all().item<bool>());
      for (int pass = 0; pass < 2; ++pass) {
        const auto d = grad({y.sum, y.norm}, {branch, residual}, {g, g}, {.retain_graph = true});
        // sum is 0 or 2, which is also the factor of the gradient. float16 has the smallest ones
        // in steps of 6e-8.
        const double error = (d[0] - y.sum * d[1]).abs().max().item<double>();
        CHECK(error <= (dtype == DType::float16 ? 2e-7 : 0.0));
        CHECK(ne(d[1], 0).sum().item<int64_t>() > d[1].numel() * 9 / 10);
      }
      CHECK(std::abs(y.sum.to(DType::float64).mean().item<double>() - 1) < 0.05);
    }
  }
}

TEST_CASE("dropout_add_layer_norm: only one result used") {
  const Problem problem({6, 20}, 0.5);
  const auto gradient = [&](bool fused, bool norm) {
    manual_seed(3);
    SumAndNorm y;
    if (fused) {
      y = dropout_add_layer_norm(problem.inputs[0], problem.inputs[1], {}, {}, problem.p);
    } else {
      y.sum = problem.inputs[1] + dropout(problem.inputs[0], problem.p);
      y.norm = layer_norm(y.sum, {20});
    }
    return grad({norm ? y.norm : y.sum}, {problem.inputs[0]}, {problem.dsum})[0].to_vector<float>();
  };
  for (const bool norm : {false, true}) CHECK(gradient(true, norm) == gradient(false, norm));
}
