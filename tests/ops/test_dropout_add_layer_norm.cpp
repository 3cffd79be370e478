// A residual branch's end: the fused op against dropout, + and layer_norm, to the bit on the CPU.
#include <doctest/doctest.h>

#include <vector>

#include <sash/core/parallel.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/dropout.h>
#include <sash/ops/norm/dropout_add_layer_norm.h>
#include <sash/ops/norm/layer_norm.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

using namespace sash;

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
