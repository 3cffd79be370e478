// float16 and bfloat16: both devices draw and compare them; the CPU computes in float32.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include <sash/core/error.h>
#include <sash/sash.h>

#include "../support/compare.h"
#include "../support/devices.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr DType kHalves[] = {DType::float16, DType::bfloat16};

}  // namespace

TEST_CASE_TEMPLATE("halves: normal numbers are float32's, rounded", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType half : kHalves) {
    manual_seed(5);
    const Tensor y = randn({5, 67}, {.dtype = half, .device = On::device});
    manual_seed(5);
    const Tensor x = randn({5, 67}, {.dtype = DType::float32, .device = On::device});
    CHECK(y.dtype() == half);
    CHECK(all_same(y, x.to(half)));
  }
}

TEST_CASE_TEMPLATE("halves: uniform numbers are below their upper bound", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  for (const DType half : kHalves) {
    const double unit = half == DType::float16 ? 0x1p-11 : 0x1p-8;
    const TensorOptions options{.dtype = half, .device = On::device};
    manual_seed(8);
    const Tensor x = rand({200000}, options);
    manual_seed(8);
    const Tensor exact = rand({200000}, {.dtype = DType::float32}).to(half);
    CHECK(amax(exact).item<double>() == 1);  // what rounding alone gives
    // All other numbers are the rounded ones.
    CHECK(all_same(x, masked_fill(exact, eq(exact, 1), 1 - unit)));
    const auto most = [&](double low, double high) {
      return amax(nn::init::uniform_(empty({200000}, options), low, high)).template item<double>();
    };
    CHECK(most(-2, 3) == 3 - 4 * unit);
    CHECK(most(-3, -2) == -2 - 4 * unit);
    CHECK(most(-1, 0) < 0);
    CHECK(most(1, 1) == 1);
    CHECK(most(0, 0) == 0);
  }
}

TEST_CASE_TEMPLATE("halves: comparisons are float32's", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  const std::vector<float> numbers{-2, 0.1F, 0.5F, std::nanf(""), 3, HUGE_VALF};
  for (const DType half : kHalves) {
    const Tensor x = tensor(numbers, {6}, {.device = On::device}).to(half);
    const Tensor y = x.flatten().clone();
    CHECK(eq(x, y).to_vector<bool>() == std::vector<bool>{true, true, true, false, true, true});
    CHECK(lt(x, 0.5).to_vector<bool>() ==
          std::vector<bool>{true, true, false, false, false, false});
    CHECK(eq(x, 0.1).to_vector<bool>() ==
          std::vector<bool>{false, true, false, false, false, false});
    CHECK(isnan(x).to_vector<bool>() == std::vector<bool>{false, false, false, true, false, false});
  }
}

TEST_CASE("halves on the CPU: every half and back, and every rounding, at every length") {
  for (const DType half : kHalves) {
    std::vector<float> every;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto word = static_cast<uint16_t>(bits);
      every.push_back(half == DType::float16 ? float16::to_float(word)
                                             : std::bit_cast<float>(bits << 16));
    }
    // Between two halves, and a little to either side of the middle.
    std::vector<float> numbers;
    for (size_t i = 0; i + 1 < every.size(); i += 7) {
      const float middle = every[i] / 2 + every[i + 1] / 2;
      for (const float x : {every[i], middle, std::nextafter(middle, HUGE_VALF)}) {
        numbers.push_back(x);
        numbers.push_back(-x);
      }
    }
    numbers.resize(numbers.size() / 16 * 16 + 5);
    const auto rounded = [half](float x) {
      return half == DType::float16 ? static_cast<float>(float16(x))
                                    : static_cast<float>(bfloat16(x));
    };
    const auto n = static_cast<int64_t>(numbers.size());
    const Tensor x = tensor(numbers, {n}), y = x.to(half);
    const auto found = y.to(DType::float32).to_vector<float>();
    int64_t wrong = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const float expected = rounded(numbers[i]);
      wrong += std::isnan(expected)
                   ? !std::isnan(found[i])
                   : std::bit_cast<uint32_t>(expected) != std::bit_cast<uint32_t>(found[i]);
    }
    CHECK(wrong == 0);
    for (const int64_t length : {1, 2, 15, 16, 17, 33}) {
      CHECK(all_same(x.narrow(0, 3, length).to(half), y.narrow(0, 3, length)));
    }
  }
}

TEST_CASE("halves on the CPU: computed in float32 and rounded once, in place too") {
  for (const DType half : kHalves) {
    manual_seed(6);
    const Tensor a = randn({5, 67}, {.device = kCPU}).to(half);
    const Tensor b = randn({5, 67}, {.device = kCPU}).to(half);
    const Tensor x = a.to(DType::float32), y = b.to(DType::float32);
    CHECK(all_same(a * b, (x * y).to(half)));
    CHECK(all_same(gelu(a), gelu(x).to(half)));
    CHECK(all_same(softmax(a), softmax(x).to(half)));
    CHECK(all_same(matmul(a, b.mT()), matmul(x, y.mT()).to(half)));
    CHECK(all_same(linear(a, b, b.select(1, 0)[0].expand({5})),
                   linear(x, y, y.select(1, 0)[0].expand({5})).to(half)));
    CHECK(all_same(sum(a, {0}), sum(x, {0}).to(half)));
    Tensor c = a.clone();
    c.mT().add_(b.mT());
    CHECK(all_same(c, (x + y).to(half)));
  }
}

TEST_CASE("halves on the CPU: large tensors, broadcast rows and strided views") {
  const int threads = num_threads();
  for (const DType half : kHalves) {
    manual_seed(7);
    for (const Shape& shape : {Shape{37, 1801}, Shape{70001}, Shape{3, 40000}, Shape{6000, 9}}) {
      const Tensor a = randn(shape, {.device = kCPU}).to(half);
      const Tensor b = randn(shape, {.device = kCPU}).to(half);
      const Tensor x = a.to(DType::float32), y = b.to(DType::float32), before = a.clone();
      const Tensor columns = sum(a, {0}), row = b[0], wide_row = y[0];
      CHECK(relative_error(columns, sum(x, {0})) < 1e-2);
      for (const int count : {1, 3}) {
        set_num_threads(count);
        CHECK(all_same(a + b, (x + y).to(half)));
        CHECK(all_same(a - row, (x - wide_row).to(half)));
        CHECK(all_same(maximum(a.flip({0}), b), maximum(x.flip({0}), y).to(half)));
        CHECK(all_same(a / 3, (x / 3).to(half)));
        CHECK(all_same(isnan(a), isnan(x)));
        CHECK(all_same(exp(a), exp(x).to(half)));
        CHECK(all_same(softmax(a), softmax(x).to(half)));
        CHECK(all_same(sum(a, {-1}), sum(x, {-1}).to(half)));
        CHECK(all_same(sum(a, {0}), columns));
        Tensor c = a.clone();
        c.mul_(b);
        CHECK(all_same(c, (x * y).to(half)));
      }
      CHECK(all_same(a, before));
    }
  }
  set_num_threads(threads);
}

TEST_CASE("halves on the CPU: rows and their gradients are float32's, rounded once") {
  // A compiler may contract layer_norm's products and sums otherwise in the kernel for halves than
  // in that for float32 (g++ 13), which turns the rounding of few elements.
  const auto rounded_once = [](const Tensor& y, const Tensor& wide, bool all) {
    const Tensor expected = wide.to(y.dtype());
    if (all) return all_same(y, expected);
    const double others = ne(y, expected).to(DType::float64).mean().item<double>();
    return others <= 5e-3 && relative_error(y, wide) < 1e-2;
  };
  using Call = std::function<Tensor(const std::vector<Tensor>&)>;
  const auto dropped = [](const std::vector<Tensor>& in) {
    manual_seed(9);
    return dropout(in[0], 0.3);
  };
  const std::vector<Call> calls{
      [](auto& in) { return gelu(in[0]); },
      [](auto& in) { return gelu(in[0], GeluApproximation::tanh); },
      [](auto& in) { return glu(in[0], GluKind::swiglu); },
      [](auto& in) { return glu(in[0], GluKind::geglu); },
      [](auto& in) { return softmax(in[0]); },
      [](auto& in) { return log_softmax(in[0]); },
      [](auto& in) { return layer_norm(in[0], {in[1].size(0)}, in[1], in[2]); },
      [](auto& in) { return rms_norm(in[0], {in[1].size(0)}, in[1]); },
      dropped,
  };
  constexpr size_t kLayerNorm = 6;
  const int threads = num_threads();
  for (const DType half : kHalves) {
    for (const Shape& shape : {Shape{301, 134}, Shape{9, 2050}}) {
      for (size_t call = 0; call < calls.size(); ++call) {
        CAPTURE(call);
        manual_seed(8);
        std::vector<Tensor> narrow, wide;
        for (const Shape& one : {shape, Shape{shape[1]}, Shape{shape[1]}}) {
          narrow.push_back(randn(one, {.device = kCPU}).to(half).requires_grad_());
          wide.push_back(narrow.back().detach().to(DType::float32).requires_grad_());
        }
        for (const int count : {1, 2, 3, 8}) {
          set_num_threads(count);
          const Tensor y = calls[call](narrow), z = calls[call](wide);
          CHECK(rounded_once(y, z, call != kLayerNorm));
          const Tensor g = randn(y.shape(), {.device = kCPU}).to(half);
          const Tensor dx = grad({y}, {narrow[0]}, {g})[0];
          const bool saves_result = call == 4 || call == 5;  // of the forward pass, rounded
          if (saves_result) {
            CHECK(relative_error(dx, grad({z}, {wide[0]}, {g.to(DType::float32)})[0]) < 2e-2);
          } else {
            CHECK(rounded_once(dx, grad({z}, {wide[0]}, {g.to(DType::float32)})[0],
                               call != kLayerNorm));
          }
        }
      }
    }
  }
  set_num_threads(threads);
}

TEST_CASE("halves on the CPU: optimisers and clipping take them beside float32") {
  Tensor single = ones({3}, {.device = kCPU}), half = single.to(DType::bfloat16);
  for (Tensor* x : {&single, &half}) {
    x->requires_grad_();
    x->set_grad(full(x->shape(), 2, x->options()));
  }
  CHECK(optim::clip_grad_norm_({single, half}, 1e9).item<double>() ==
        doctest::Approx(std::sqrt(24)));
  optim::clip_grad_value_({single, half}, 0.5);
  CHECK(half.grad().to_vector<float>() == std::vector<float>(3, 0.5F));
  optim::SGD sgd({single, half}, {.lr = 0.5});
  sgd.step();
  CHECK(single.to_vector<float>() == std::vector<float>(3, 0.75F));
  CHECK(half.to_vector<float>() == std::vector<float>(3, 0.75F));
  optim::AdamW adamw({single, half}, {.lr = 0.25, .weight_decay = 0});
  adamw.step();
  CHECK(half.to_vector<float>() == std::vector<float>(3, 0.5F));
}

TEST_CASE(
    "halves on the CPU: what is converted some items at a time has the bits of whole copies") {
  const auto values_and_gradients = [](DType half, DType computed) {
    manual_seed(4);
    const TensorOptions options{.dtype = half, .device = kCPU};
    // More elements than a piece has, and several blocks of a convolution.
    Tensor images = randn({240, 3, 64, 96}, options).to(computed).requires_grad_();
    Tensor weight = randn({2, 3, 3, 3}, options).to(computed).requires_grad_();
    Tensor logits = randn({4500, 1000}, options).to(computed).requires_grad_();
    std::vector<int64_t> classes(4500);
    for (size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<int64_t>(i * 7 % 1000);
    const Tensor targets = tensor(classes, {4500}, {.device = kCPU});
    const Tensor results[] = {
        max_pool2d(images, 3, {.stride = 2, .padding = 1}),
        conv2d(images, weight, {}, {.stride = 3}),
        conv_transpose2d(images.detach().narrow(1, 0, 2), weight, {}, {.stride = 2}),
        cross_entropy(logits, targets, {.label_smoothing = 0.1, .reduction = Reduction::none}),
        cumsum(images, 3),
        amax(logits, {1}),
        images.sort(1).values,
        median(logits, 1).values};
    std::vector<Tensor> all;
    for (const Tensor& y : results) {
      for (Tensor* x : {&images, &weight, &logits}) x->zero_grad();
      y.backward(ones(y.shape(), y.options()));
      all.push_back(y.detach().to(half));
      for (const Tensor& x : {images, weight, logits}) {
        if (x.grad().defined()) all.push_back(x.grad().to(half));
      }
    }
    return all;
  };
  for (const DType half : kHalves) {
    const std::vector<Tensor> got = values_and_gradients(half, half);
    const std::vector<Tensor> expected = values_and_gradients(half, DType::float32);
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK(all_same(got[i], expected[i]));
    }
  }
}
