#include <doctest/doctest.h>

#include <string>

#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/tensor/autograd/gradcheck.h>
#include <sash/tensor/autograd/node.h>
#include <sash/tensor/factories.h>

using namespace sash;

namespace {

using Tensors = std::vector<Tensor>;

Tensor variable(const std::vector<double>& values, const Shape& shape) {
  return tensor(values, shape, {.requires_grad = true});
}

// x^3 whose gradient is wrong in element `wrong` alone, by `factor`.
Tensor cube(const Tensor& x, int64_t wrong, double factor) {
  const Tensor y = x * x * x;
  std::vector<double> scale(static_cast<size_t>(x.numel()), 1.0);
  if (wrong >= 0) scale[static_cast<size_t>(wrong)] = factor;
  const Tensor weights = tensor(scale, x.shape());
  return record("cube", {x}, y.detach(), [x = save(x), weights](Backward& pass, const Tensor& g) {
    return Gradients{3.0 * g * square(pass(x)) * weights};
  });
}

}  // namespace

TEST_CASE("gradcheck passes right gradients and says where one is wrong") {
  const Tensor x = variable({0.5, -1, 2, 1.5, -0.7, 0.9}, {2, 3});
  const GradcheckReport good = gradcheck([](const Tensors& t) { return cube(t[0], -1, 1); }, {x});
  CHECK(good);
  CHECK(good.compared == 36);
  CHECK_NOTHROW(good.or_throw());

  const auto wrong = [](const Tensors& t) { return cube(t[0], 4, 1.01); };
  const GradcheckReport bad = gradcheck(wrong, {x});
  CHECK_FALSE(bad);
  CHECK(bad.wrong == 1);
  CHECK(bad.worst.input == 0);
  CHECK(bad.worst.output == 0);
  CHECK(bad.worst.input_index == Dims{1, 1});
  CHECK(bad.worst.output_index == Dims{1, 1});
  CHECK(bad.worst.numerical == doctest::Approx(3 * 0.49).epsilon(1e-6));
  CHECK(bad.worst.analytical == doctest::Approx(3 * 0.49 * 1.01).epsilon(1e-6));
  CHECK(bad.message().find("input 0 at [1, 1]") != std::string::npos);
  CHECK_THROWS_WITH_AS(bad.or_throw(), doctest::Contains("analytical"), AutogradError);
  CHECK_FALSE(gradcheck(wrong, {x}, {.fast = true}));
}

TEST_CASE("gradgradcheck finds a wrong second derivative of a right first one") {
  const Tensor x = variable({0.5, -1, 2}, {3});
  const auto cut = [](const Tensors& t) {
    return record("cut", {t[0]}, (t[0] * t[0] * t[0]).detach(),
                  [x = save(t[0])](Backward& pass, const Tensor& g) {
                    return Gradients{3.0 * g * square(pass(x)).detach()};
                  });
  };
  CHECK(gradcheck(cut, {x}));
  const GradcheckReport report = gradgradcheck(cut, {x});
  CHECK_FALSE(report);
  CHECK(report.check == "gradgradcheck");
  CHECK_FALSE(gradgradcheck(cut, {x}, {.fast = true}));
  CHECK(gradgradcheck([](const Tensors& t) { return cube(t[0], -1, 1); }, {x}));
}

TEST_CASE("gradcheck passes no gradient where the differences are infinite") {
  const Tensor x = variable({1e-6, 2}, {2});  // the lower point is log 0
  const auto wrong = [](const Tensors& t) {
    return record("wrong", {t[0]}, t[0].log().detach(),
                  [](Backward&, const Tensor& g) { return Gradients{g * 0.5}; });
  };
  const GradcheckReport report = gradcheck(wrong, {x});
  CHECK_FALSE(report);
  CHECK(report.wrong == 1);
  CHECK(report.worst.output_index == Dims{0});
  CHECK_FALSE(gradcheck(wrong, {x}, {.fast = true}));
}

TEST_CASE("gradcheck: an exact entry is never the worst") {
  const Tensor x = variable({1, 2}, {2});
  const auto wrong = [](const Tensors& t) { return cube(t[0], 1, 1.01); };
  const GradcheckReport report = gradcheck(wrong, {x}, {.atol = 0});
  CHECK(report.wrong == 1);
  CHECK(report.worst.output_index == Dims{1});
  CHECK(report.worst.input_index == Dims{1});
}

TEST_CASE("gradcheck finds missing, irreproducible and unexpected gradients") {
  const Tensor x = variable({0.5, -1}, {2});
  CHECK_FALSE(gradcheck([](const Tensors& t) { return t[0].detach() * t[0]; }, {x}));
  CHECK_FALSE(gradcheck([](const Tensors& t) { return t[0].detach() * 2.0; }, {x}));

  int calls = 0;
  const auto drifting = [&](const Tensors& t) {
    return record("drifting", {t[0]}, t[0].clone().detach(),
                  [&](Backward&, const Tensor& g) { return Gradients{g * (1 + 1e-12 * ++calls)}; });
  };
  const GradcheckReport drifted = gradcheck(drifting, {x});
  CHECK(drifted.wrong == 0);
  CHECK(drifted.problem.find("different bits") != std::string::npos);

  const auto spontaneous = [](const Tensors& t) {
    return record("spontaneous", {t[0]}, t[0].clone().detach(),
                  [](Backward&, const Tensor& g) { return Gradients{g + 1e-9}; });
  };
  CHECK(gradcheck(spontaneous, {x}).problem.find("zero cotangent") != std::string::npos);
}

TEST_CASE("gradcheck takes any strides, several results, and inputs without grad") {
  const Tensor base = tensor<double>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  Tensor transposed = base.transpose(0, 1).detach(), sliced = base.slice(1, 1, 4, 2).detach();
  Tensor expanded = tensor<double>({1, 2}).expand({3, 2}).detach();
  const Tensor counts = tensor<int64_t>({1, 2, 3});
  for (Tensor* x : {&transposed, &sliced, &expanded}) x->requires_grad_();
  for (const bool fast : {false, true}) {
    const auto two = [](const Tensors& t) -> Tensors { return {exp(t[0] * 0.1), t[0] * t[0]}; };
    for (const Tensor& x : {transposed, sliced, expanded}) {
      CHECK(gradcheck(two, {x, counts}, {.fast = fast}));
      CHECK(gradgradcheck(two, {x, counts}, {.fast = fast}));
    }
  }
  CHECK(base.to_vector<double>() == std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("wrong calls: gradcheck") {
  const auto twice = [](const Tensors& t) { return t[0] * 2.0; };
  const Tensor narrow = tensor<float>({1, 2}, {.requires_grad = true});
  CHECK_THROWS_WITH_AS(gradcheck(twice, {narrow}),
                       "gradcheck: expected float64 inputs (differences need the precision), got "
                       "float32",
                       DTypeError);
  CHECK_THROWS_WITH_AS(gradcheck(twice, {tensor<double>({1, 2})}),
                       "gradcheck: expected an input that requires grad, got none", ValueError);
  const auto cast = [](const Tensors& t) { return t[0].to(DType::float32); };
  CHECK_THROWS_AS(gradcheck(cast, {variable({1, 2}, {2})}), DTypeError);
}
