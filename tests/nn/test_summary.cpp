// What nn::summary says of models whose figures are known by hand. They are those of PyTorch's
// FlopCounterMode, where a product of [M, K] and [K, N] takes 2 M K N.

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <sstream>
#include <thread>

#include <sash/core/backend/kernel.h>
#include <sash/core/readable.h>
#include <sash/nn/inspect/summary.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/batch_norm.h>
#include <sash/nn/layers/conv.h>
#include <sash/nn/layers/dropout.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/sequential.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/ops/linalg/matmul.h>
#include <sash/optim/profiler.h>
#include <sash/tensor/factories.h>

#include "../support/devices.h"
#include "../support/expect_error.h"
#include "../support/small_models.h"

using namespace sash;
using namespace sash::testing;

namespace {

const nn::SummaryRow& row_of(const nn::Summary& summary, const char* name) {
  for (const nn::SummaryRow& row : summary.rows) {
    if (row.name == name) return row;
  }
  throw ValueError("row_of", "a row", name);
}

nn::CausalLM lm_with(const std::string& attention) {
  return small_lm({.context = 256, .dim = 16, .dropout = 0.5, .attention = attention});
}

// Two uses of one child, and a product of its own.
struct Twice : nn::Module {
  nn::Linear& fc = register_module<nn::Linear>("fc", 4, 4);
  nn::Linear& unused = register_module<nn::Linear>("unused", 4, 4);
  Tensor forward(const Tensor& x) override { return matmul(fc(relu(fc(x))), x.transpose(0, 1)); }
};

}  // namespace

TEST_CASE_TEMPLATE("summary: shapes, parameters and FLOPs of a perceptron", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  nn::Sequential net(nn::Linear(12, 32), nn::ReLU(), nn::Linear(32, 5));
  net.to(device);
  net[0].freeze();
  const nn::Summary summary = nn::summary(net, ones({7, 12}, {.device = device}));
  REQUIRE(summary.rows.size() == 4);
  CHECK(summary.model().parameters == 12 * 32 + 32 + 32 * 5 + 5);
  CHECK(summary.model().trainable == 32 * 5 + 5);
  CHECK(summary.model().parameter_bytes == 4 * summary.model().parameters);
  CHECK(summary.model().flops == 2 * 7 * (12 * 32 + 32 * 5));
  CHECK_FALSE(summary.model().mask_share);
  const nn::SummaryRow& first = row_of(summary, "0");
  CHECK(first.type == "Linear(12 -> 32, bias)");
  CHECK(first.depth == 1);
  CHECK(first.calls == 1);
  CHECK(first.inputs == std::vector<Shape>{Shape{7, 12}});
  CHECK(first.output == Shape{7, 32});
  CHECK(first.output_dtype == DType::float32);
  CHECK(first.output_bytes == 4 * 7 * 32);
  CHECK(first.trainable == 0);
  CHECK(first.flops == 2 * 7 * 12 * 32);
  CHECK(row_of(summary, "1").flops == 0);
  // The last layer needs its input, and there is the result.
  CHECK(summary.kept_bytes >= 4 * 7 * (32 + 5));
  const std::string text = to_string(summary);
  CHECK(text.find("Linear(12 -> 32, bias)") != std::string::npos);
  CHECK(text.find("416 frozen") != std::string::npos);
  CHECK(text.find("581 parameters (165 trained), 2.27 KiB; buffers 0 B") != std::string::npos);
}

TEST_CASE("summary: a module that is called twice, one that is not, and products between") {
  Twice net;
  const nn::Summary summary = nn::summary(net, ones({3, 4}));
  CHECK(row_of(summary, "fc").calls == 2);
  CHECK(row_of(summary, "fc").flops == 2 * 2 * 3 * 4 * 4);
  CHECK(row_of(summary, "fc").output_bytes == 2 * 4 * 3 * 4);
  CHECK(row_of(summary, "unused").calls == 0);
  CHECK_FALSE(row_of(summary, "unused").output);
  CHECK(summary.model().flops == 2 * (2 * 3 * 4 * 4 + 3 * 3 * 4));
  CHECK(to_string(summary).find("fc x2") != std::string::npos);
}

TEST_CASE_TEMPLATE("summary: a convolution counts its products", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  nn::Sequential net(nn::Conv2d(3, 8, 3, {.padding = 1}), nn::BatchNorm2d(8));
  net.to(device);
  const nn::Summary summary = nn::summary(net, ones({2, 3, 10, 12}, {.device = device}));
  CHECK(row_of(summary, "0").flops == 2.0 * 2 * 8 * 10 * 12 * 3 * 3 * 3);
  CHECK(row_of(summary, "0").output == Shape{2, 8, 10, 12});
  CHECK(summary.buffer_bytes >= 2 * 4 * 8);
}

TEST_CASE_TEMPLATE("summary: attention counts the blocks of its mask", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  const Tensor tokens = zeros({1, 256}, {.dtype = DType::int64, .device = device});
  double dense = 0;
  for (const char* attention : {"dense", "causal_window:64"}) {
    nn::CausalLM model = lm_with(attention);
    model.to(device);
    const nn::Summary summary = nn::summary(model, tokens);
    const nn::SummaryRow& layer = row_of(summary, "layers.1");
    const nn::SummaryRow& attends = row_of(summary, "layers.1.self_attn");
    CHECK(layer.output == Shape{1, 256, 16});
    CHECK(row_of(summary, "head").flops == 2 * 256 * 16 * 11);
    REQUIRE(attends.mask_share);
    CHECK(layer.mask_share == attends.mask_share);
    CHECK_FALSE(row_of(summary, "layers.1.linear1").mask_share);
    const double scores = 2.0 * 2 * 256 * 256 * 16 * *attends.mask_share;
    CHECK(attends.flops == doctest::Approx(2 * 256 * 16 * (3 * 16 + 16) + scores));
    CHECK(layer.flops == doctest::Approx(attends.flops + 2 * 2 * 256 * 16 * 64));
    CHECK(summary.model().flops ==
          doctest::Approx(2 * layer.flops + row_of(summary, "head").flops));
    // Causal, so at least half of the scores and at most all.
    if (dense == 0) CHECK(*attends.mask_share > 0.5);
    if (dense > 0) CHECK(*attends.mask_share < dense);
    dense = *attends.mask_share;
    std::ostringstream text;
    text << summary;
    CHECK(text.str() == to_string(summary));
    const double tenths = std::round(1000 * *attends.mask_share) / 10;
    CHECK(text.str().find(to_text(tenths, std::chars_format::fixed, 1) + " %") !=
          std::string::npos);
  }
}

TEST_CASE_TEMPLATE("summary: leaves the model as it was", On, Cpu, Cuda) {
  const Device device = On::device;
  if (missing(device)) return;
  nn::CausalLM model = lm_with("dense");
  model.to(device);
  model.layers[0].eval();
  model.parameters()[0].set_grad(ones_like(model.parameters()[0]));
  const Tensor tokens = zeros({1, 8}, {.dtype = DType::int64, .device = device});
  const RandomStates random = random_states();
  nn::summary(model, tokens);
  CHECK(random_states() == random);
  CHECK(model.is_training());
  CHECK_FALSE(model.layers[0].linear1.is_training());
  CHECK(model.layers[1].linear1.is_training());
  CHECK_FALSE(model.layers[1].linear1.has_forward_hooks());
  CHECK(model.parameters()[0].grad().defined());
  CHECK_FALSE(model.parameters()[1].grad().defined());
  nn::Sequential net(nn::BatchNorm1d(3));
  net.to(device);
  const std::vector<double> mean = net.named_buffers()[0].second.to_vector<double>();
  nn::summary(net, ones({4, 3}, {.device = device}));
  CHECK(net.named_buffers()[0].second.to_vector<double>() == mean);
  CHECK(net.is_training());
}

TEST_CASE("summary: errors leave no hook and no mode behind") {
  nn::Sequential net(nn::Linear(3, 4), nn::Linear(5, 2));
  CHECK_THROWS_AS(nn::summary(net, ones({2, 3})), ShapeError);
  CHECK(net.is_training());
  CHECK_FALSE(net[0].has_forward_hooks());
  CHECK_FALSE(KernelObserver::installed());
  const optim::Profiler profiler;
  expect_error<ValueError>("summary: expected no profiler that runs, got one", [&] {
    nn::summary(net, ones({2, 3}));
  });
  CHECK(KernelObserver::installed());
}

TEST_CASE("summary: kernels of other threads do not count, and go on") {
  nn::Sequential net(nn::Linear(3, 4), nn::Linear(4, 2));
  const Tensor x = ones({2, 3});
  const double expected = nn::summary(net, x).rows[0].flops;
  std::atomic<bool> done = false;
  std::thread other([&] {
    const Tensor y = ones({5, 5});
    while (!done) matmul(y, y);
  });
  for (int i = 0; i < 300; ++i) CHECK(nn::summary(net, x).rows[0].flops == expected);
  done = true;
  other.join();
}

TEST_CASE("summary: what keeps memory is what the backward pass needs") {
  nn::Sequential net(nn::Linear(16, 16, {.bias = false}), nn::Linear(16, 16, {.bias = false}));
  const Tensor x = ones({1024, 16});
  CHECK(nn::summary(net, x).kept_bytes == 2 * 4 * 1024 * 16);
  net.freeze();
  CHECK(nn::summary(net, x).kept_bytes == 4 * 1024 * 16);
}

TEST_CASE("readable numbers") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1234567) == "1,234,567");
  CHECK(grouped(-123456) == "-123,456");
  CHECK(with_prefix(0) == "0");
  CHECK(with_prefix(950) == "950");
  CHECK(with_prefix(1234567) == "1.23 M");
  CHECK(with_prefix(45.6e9) == "45.6 G");
  CHECK(with_prefix(999.9e3) == "1.00 M");
  CHECK(bytes_text(950) == "950 B");
  CHECK(bytes_text(1536) == "1.50 KiB");
  CHECK(bytes_text(int64_t{9} << 28) == "2.25 GiB");
}
