#include <doctest/doctest.h>
#include <sash/nn/init.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/dropout.h>
#include <sash/nn/layers/embedding.h>
#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/loss.h>
#include <sash/nn/layers/module_list.h>
#include <sash/nn/layers/sequential.h>
#include <sash/nn/models/decoder.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "../support/compare.h"
#include "../support/names.h"

using namespace sash;
using sash::testing::all_same;
using sash::testing::keys;
using sash::testing::Names;

namespace {

struct MLP : nn::Module {
  nn::Linear& fc1 = register_module<nn::Linear>("fc1", 4, 16);
  nn::Linear& fc2 = register_module("fc2", nn::Linear(16, 1));
  Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
};

}  // namespace

TEST_CASE("references to children survive a move of their parent") {
  manual_seed(1);
  MLP before;
  const Tensor x = randn({3, 4});
  const Tensor expected = before(x);
  nn::Linear* const fc1 = &before.fc1;
  MLP after = std::move(before);
  CHECK(&after.fc1 == fc1);
  CHECK(all_same(after(x), expected));
  CHECK(after.num_parameters() == 4 * 16 + 16 + 16 + 1);
  CHECK(after.parameters()[0].is_same(after.fc1.weight));
}

TEST_CASE("names of parameters, buffers and modules, in the order of registration") {
  MLP mlp;
  const Names expected{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
  CHECK(keys(mlp.named_parameters()) == expected);
  CHECK(keys(mlp.state_dict()) == expected);
  mlp.register_buffer("calls", zeros({}, {.dtype = DType::int64}));
  CHECK(keys(mlp.named_buffers()) == Names{"calls"});
  CHECK(keys(mlp.state_dict())[0] == "calls");
  Names modules;
  for (const auto& [name, module] : mlp.named_modules()) modules.push_back(name);
  CHECK(modules == Names{"", "fc1", "fc2"});
  CHECK(mlp.children()[1].second == &mlp.fc2);
  Names order;
  mlp.apply([&](nn::Module& module) { order.push_back(module.describe()); });
  CHECK(order == Names{"Linear(4 -> 16, bias)", "Linear(16 -> 1, bias)", "MLP"});
}

TEST_CASE("wrong calls: names of parameters, buffers and modules") {
  MLP mlp;
  const Tensor x = zeros({2});
  CHECK_THROWS_WITH_AS(mlp.register_parameter("", x),
                       "MLP.register_parameter: expected a name, got an empty one", ValueError);
  CHECK_THROWS_WITH_AS(mlp.register_buffer("a.b", x),
                       "MLP.register_buffer: expected a name without dots, got 'a.b'", ValueError);
  CHECK_THROWS_WITH_AS(mlp.register_module("fc1", nn::ReLU()),
                       "MLP.register_module: expected a new name, got 'fc1', which is taken",
                       ValueError);
  mlp.register_parameter("scale", x);
  CHECK_THROWS_WITH_AS(mlp.register_buffer("scale", x),
                       "MLP.register_buffer: expected a new name, got 'scale', which is taken",
                       ValueError);
}

TEST_CASE("tensors that cannot be parameters") {
  MLP mlp;
  const Tensor made = ones({2}, {.requires_grad = true}) * ones({2});
  CHECK_THROWS_WITH_AS(
      mlp.register_parameter("a", made),
      "MLP.register_parameter: expected a leaf for 'a', got the output of a recorded op",
      AutogradError);
  CHECK_THROWS_WITH_AS(mlp.register_parameter("a", Tensor()),
                       "MLP.register_parameter: expected a tensor for 'a', got an undefined one",
                       ValueError);
  CHECK_THROWS_AS(mlp.register_parameter("a", zeros({2}, {.dtype = DType::int64})), DTypeError);
  CHECK(mlp.parameters().size() == 4);
  CHECK(mlp.register_parameter("a", ones({2})).requires_grad());
}

TEST_CASE("calling a module without forward names its class") {
  struct Empty : nn::Module {};
  Empty empty;
  CHECK_THROWS_WITH_AS(empty(zeros({1})), "Empty: it has no forward(const Tensor&)",
                       NotImplemented);
}

TEST_CASE("training mode reaches every module") {
  nn::Sequential net(nn::Sequential(nn::Dropout(0.5), nn::ReLU()), nn::Dropout(0.5));
  const Tensor x = ones({1000});
  CHECK(net.is_training());
  net.eval();
  CHECK_FALSE(net[1].is_training());
  CHECK(all_same(net(x), x));
  net.train();
  std::set<double> values;
  for (const double value : net(x).to_vector<double>()) values.insert(value);
  CHECK(values == std::set<double>{0, 4});
}

TEST_CASE("tied weights count once and are listed under both names") {
  struct Tied : nn::Module {
    nn::Embedding& in = register_module<nn::Embedding>("in", 5, 3);
    nn::Linear& out = register_module<nn::Linear>("out", in.weight);
  };
  Tied tied;
  CHECK(tied.parameters().size() == 1);
  CHECK(tied.num_parameters() == 15);
  CHECK(keys(tied.state_dict()) == Names{"in.weight", "out.weight"});
  tied.to(DType::float64);
  CHECK(tied.in.weight.is_same(tied.out.weight));
  CHECK(tied.out.weight.dtype() == DType::float64);
}

TEST_CASE("a cast keeps every handle valid, gradients included") {
  MLP mlp;
  const Tensor held = mlp.fc1.weight;
  const std::vector<double> elements = held.to_vector<double>();
  const Tensor steps = mlp.register_buffer("steps", ones({}, {.dtype = DType::int64}));
  mlp(ones({2, 4})).sum().backward();
  const std::vector<double> gradient = held.grad().to_vector<double>();
  mlp.to(DType::float64);
  CHECK(held.dtype() == DType::float64);
  CHECK(held.requires_grad());
  CHECK(held.to_vector<double>() == elements);
  CHECK(held.grad().dtype() == DType::float64);
  CHECK(held.grad().to_vector<double>() == gradient);
  CHECK(steps.dtype() == DType::int64);
  mlp.to(kCPU)(ones({2, 4}, {.dtype = DType::float64})).sum().backward();
  CHECK(held.grad().to_vector<double>()[0] == doctest::Approx(2 * gradient[0]).epsilon(1e-6));
  mlp.zero_grad();
  CHECK_FALSE(held.grad().defined());
  CHECK_THROWS_WITH_AS(mlp.to(DType::int64), "MLP.to: expected a floating dtype, got int64",
                       DTypeError);
}

TEST_CASE("a state dictionary copies one module's elements into another") {
  manual_seed(1);
  MLP from, into;
  const Tensor x = randn({3, 4});
  CHECK_FALSE(all_same(from(x), into(x)));
  const Tensor handle = into.fc1.weight;
  const LoadReport report = into.load_state_dict(from.state_dict());
  CHECK(report.missing.empty());
  CHECK(all_same(from(x), into(x)));
  CHECK(handle.is_same(into.fc1.weight));
  // The dictionary shares memory with the module and has no history.
  StateDict dict = into.state_dict();
  CHECK_FALSE(dict[0].second.requires_grad());
  dict[0].second.fill_(7);
  CHECK(into.fc1.weight.to_vector<float>()[0] == 7);
}

TEST_CASE("a state dictionary that does not fit changes nothing; the error lists all differences") {
  MLP mlp;
  const StateDict before = mlp.state_dict();
  const std::vector<double> elements = mlp.fc1.weight.to_vector<double>();
  StateDict dict{{"fc1.weight", zeros({16, 4})},
                 {"fc1.bias", zeros({4})},
                 {"fc2.weight", zeros({1, 16}, {.dtype = DType::int64})},
                 {"head.weight", zeros({1})}};
  CHECK_THROWS_WITH_AS(mlp.load_state_dict(dict),
                       "MLP.load_state_dict: missing fc2.bias; unexpected head.weight; mismatched "
                       "fc1.bias (expected shape [16], got [4]), fc2.weight (expected a floating "
                       "dtype, got int64)",
                       ValueError);
  CHECK_THROWS_AS(mlp.load_state_dict(dict, false), ValueError);
  CHECK(mlp.fc1.weight.to_vector<double>() == elements);
  dict.erase(dict.begin() + 1, dict.begin() + 3);
  const LoadReport report = mlp.load_state_dict(dict, false);
  CHECK(report.missing == Names{"fc1.bias", "fc2.weight", "fc2.bias"});
  CHECK(report.unexpected == Names{"head.weight"});
  CHECK(mlp.fc1.weight.to_vector<double>() == std::vector<double>(64, 0.0));
  dict.push_back(dict[0]);
  CHECK_THROWS_WITH_AS(mlp.load_state_dict(dict, false),
                       "MLP.load_state_dict: expected each key once, got 'fc1.weight' twice",
                       ValueError);
}

TEST_CASE("printing shows the tree and the numbers of parameters") {
  nn::Sequential net(nn::Embedding(1000, 8), nn::LayerNorm(8), nn::Linear(8, 2), nn::GELU(),
                     nn::Dropout(0.1));
  std::ostringstream out;
  out << net;
  CHECK(out.str() ==
        "Sequential {                 8,034\n"
        "  (0): Embedding(1000, 8)    8,000\n"
        "  (1): LayerNorm(8, bias)       16\n"
        "  (2): Linear(8 -> 2, bias)     18\n"
        "  (3): GELU\n"
        "  (4): Dropout(0.1)\n"
        "}\n"
        "8,034 parameters");
}

TEST_CASE("Sequential and ModuleList") {
  manual_seed(3);
  nn::Sequential net(nn::Linear(4, 8), nn::ReLU());
  net.append(nn::Linear(8, 2)).append(nn::Tanh());
  CHECK(keys(net.state_dict()) == Names{"0.weight", "0.bias", "2.weight", "2.bias"});
  nn::Sequential moved(std::move(net));
  const Tensor x = randn({5, 4});
  CHECK(all_same(moved(x), tanh(moved[2](relu(moved[0](x))))));
  CHECK_THROWS_WITH_AS(moved[4], "Sequential: expected an index below 4, got 4", IndexError);

  nn::ModuleList<nn::Linear> list;
  list.emplace(2, 3);
  list.append(nn::Linear(3, 1, {.bias = false}));
  CHECK(keys(list.state_dict()) == Names{"0.weight", "0.bias", "1.weight"});
  int64_t inputs = 0;
  for (nn::Linear& layer : list) inputs += layer.weight.size(1);
  CHECK(inputs == 5);
  CHECK(list[1].weight.size(0) == 1);
  CHECK_THROWS_WITH_AS(list[-1], "ModuleList: expected an index below 2, got -1", IndexError);
}

TEST_CASE("Sequential and ModuleList: a child takes its parent's place") {
  nn::Sequential net(nn::Sequential(nn::Linear(2, 3), nn::ReLU()), nn::ReLU());
  const Tensor weight = net.parameters()[0];
  net = std::move(dynamic_cast<nn::Sequential&>(net[0]));
  CHECK(net.size() == 2);
  CHECK(net.parameters()[0].is_same(weight));
  CHECK(net(ones({1, 2})).shape() == Shape{1, 3});
  nn::ModuleList<> list;
  nn::ModuleList<>& inner = list.append(nn::ModuleList<>());
  list.append(nn::ReLU());
  inner.append(nn::Linear(2, 3));
  list = std::move(inner);
  CHECK(list.size() == 1);
  CHECK(list[0](ones({1, 2})).shape() == Shape{1, 3});
}

TEST_CASE("layers are initialised as in PyTorch") {
  manual_seed(5);
  const nn::Linear linear(400, 100);
  double largest = 0, sum = 0;
  for (const double w : linear.weight.to_vector<double>()) {
    largest = std::max(largest, std::abs(w));
    sum += w * w;
  }
  CHECK(largest <= 0.05);
  CHECK(largest > 0.0499);
  CHECK(sum / 40000 == doctest::Approx(0.05 * 0.05 / 3).epsilon(0.03));
  largest = 0;
  for (const double b : linear.bias.to_vector<double>()) largest = std::max(largest, std::abs(b));
  CHECK(largest <= 0.05);
  CHECK(largest > 0.04);
  const nn::LayerNorm norm(3);
  CHECK(norm.weight.to_vector<float>() == std::vector<float>{1, 1, 1});
  CHECK(norm.bias.to_vector<float>() == std::vector<float>{0, 0, 0});
}

TEST_CASE("initialisers have the documented mean and variance") {
  manual_seed(6);
  const auto moments = [](const Tensor& x) {
    double mean = 0, square = 0;
    for (const double value : x.to_vector<double>()) {
      mean += value / static_cast<double>(x.numel());
      square += value * value / static_cast<double>(x.numel());
    }
    return std::pair(mean, std::sqrt(square - mean * mean));
  };
  const Tensor w = zeros({200, 300});
  CHECK(moments(nn::init::uniform_(w, 1, 3)).first == doctest::Approx(2).epsilon(0.01));
  CHECK(moments(nn::init::normal_(w, 1, 2)).second == doctest::Approx(2).epsilon(0.02));
  CHECK(moments(nn::init::xavier_uniform_(w)).second ==
        doctest::Approx(std::sqrt(2. / 500)).epsilon(0.02));
  CHECK(moments(nn::init::xavier_normal_(w)).second ==
        doctest::Approx(std::sqrt(2. / 500)).epsilon(0.02));
  CHECK(moments(nn::init::kaiming_uniform_(w)).second ==
        doctest::Approx(std::sqrt(2. / 300)).epsilon(0.02));
  CHECK(moments(nn::init::kaiming_normal_(w, 1, nn::init::Fan::out)).second ==
        doctest::Approx(std::sqrt(1. / 200)).epsilon(0.02));
  // A standard normal cut at +-1 has variance 1 - 2 phi(1) / (2 Phi(1) - 1).
  CHECK(moments(nn::init::trunc_normal_(w, 0, 1, -1, 1)).second ==
        doctest::Approx(std::sqrt(0.29112509)).epsilon(0.02));
  double largest = 0;
  for (const double value : w.to_vector<double>()) largest = std::max(largest, std::abs(value));
  CHECK(largest <= 1);
  CHECK(nn::init::constant_(w, 2).to_vector<float>()[17] == 2);
  const Tensor trained = zeros({2, 2}, {.requires_grad = true});
  CHECK(nn::init::ones_(trained).is_leaf());
  CHECK_THROWS_WITH_AS(nn::init::xavier_normal_(zeros({4})),
                       "xavier_normal_: expected at least 2 axes, got [4]", ShapeError);
  CHECK_THROWS_WITH_AS(nn::init::uniform_(zeros({2}, {.dtype = DType::int64})),
                       "uniform_: expected a floating dtype, got int64", DTypeError);
  CHECK_THROWS_WITH_AS(nn::init::normal_(w, 0, -1),
                       "normal_: expected a standard deviation of at least 0, got -1", ValueError);
  CHECK_THROWS_WITH_AS(nn::init::trunc_normal_(w, 0, 1, 2, 1),
                       "trunc_normal_: expected low < high, got 2 and 1", ValueError);
}

TEST_CASE("trunc_normal_ stays in its range, far tails too") {
  manual_seed(8);
  const Tensor x = zeros({20000}, {.dtype = DType::float64});
  const auto mean = [&](double std, double low, double high) {
    nn::init::trunc_normal_(x, 0, std, low, high);
    CHECK(x.min().item<double>() >= low);
    CHECK(x.max().item<double>() <= high);
    return x.mean().item<double>();
  };
  // Far out, the distance from the near end is exponential: its mean is about 1 / |z|.
  CHECK(mean(1, 9, 10) == doctest::Approx(9.108).epsilon(1e-3));
  CHECK(mean(1, -10, -9) == doctest::Approx(-9.108).epsilon(1e-3));
  CHECK(mean(1, 8.2, 9) == doctest::Approx(8.318).epsilon(1e-3));
  CHECK(mean(1, -9, -8.2) == doctest::Approx(-8.318).epsilon(1e-3));
  CHECK(mean(1, 9, std::numeric_limits<double>::infinity()) ==
        doctest::Approx(9.108).epsilon(1e-3));
  for (const double std : {0.02, 0.001}) {
    CHECK(mean(std, -2, -1) == doctest::Approx(-1).epsilon(1e-3));
    CHECK(mean(std, 1, 2) == doctest::Approx(1).epsilon(1e-3));
  }
  CHECK(mean(1, -40, -39) == doctest::Approx(-39).epsilon(1e-3));
}

TEST_CASE("layers: those whose weights are loaded draw nothing") {
  manual_seed(7);
  const nn::Linear linear(3, 2, {.draw = false});
  const nn::Embedding table(4, 2, {.padding_idx = 1, .draw = false});
  nn::TransformerConfig config{.vocab = 5, .dim = 4, .heads = 1, .layers = 1};
  config.draw_weights = false;
  const nn::Decoder model(config);
  CHECK(random_state() == RandomState{7, 0});
  CHECK(sash::testing::all_equal(table.weight.select(0, 1), 0));
  // A model made like this one has weights.
  const nn::Decoder drawn(model.config());
  CHECK(random_state() != RandomState{7, 0});
  nn::init::trunc_normal_(linear.weight, 0, 1, -1, 0);
  CHECK(linear.weight.to_vector<float>()[5] < 0);
}

TEST_CASE("wrong calls: constructors of layers") {
  CHECK_THROWS_WITH_AS(nn::Linear(0, 3), "Linear: expected a positive in_features, got 0",
                       ValueError);
  CHECK_THROWS_WITH_AS(nn::Embedding(3, -1), "Embedding: expected a positive dim, got -1",
                       ValueError);
  CHECK_THROWS_WITH_AS(nn::Dropout(1.5), "Dropout: expected p in [0, 1], got 1.5", ValueError);
  CHECK_THROWS_WITH_AS(nn::Dropout(std::nan("")), "Dropout: expected p in [0, 1], got nan",
                       ValueError);
  CHECK_THROWS_WITH_AS(nn::LayerNorm(Shape{}),
                       "LayerNorm: expected a shape to normalise, got an empty one", ValueError);
  CHECK_THROWS_WITH_AS(nn::LayerNorm(4, {.eps = 0}), "LayerNorm: expected eps > 0, got 0",
                       ValueError);
  CHECK_THROWS_WITH_AS(nn::Linear(zeros({3, 2}), zeros({2})), "Linear: expected shape [3], got [2]",
                       ShapeError);
}

TEST_CASE("wrong calls: inputs of layers") {
  nn::Linear linear(4, 2);
  CHECK_THROWS_WITH_AS(linear(zeros({3, 5})), "Linear: expected a last extent of 4, got [3, 5]",
                       ShapeError);
  CHECK_THROWS_WITH_AS(linear(Tensor()), "Linear: expected a tensor, got an undefined tensor",
                       ValueError);
  nn::LayerNorm norm(4);
  CHECK_THROWS_AS(norm(zeros({3, 5})), ShapeError);
  nn::Embedding embedding(5, 2);
  CHECK_THROWS_AS(embedding(tensor<int64_t>({1, 5})), IndexError);
  CHECK_THROWS_AS(embedding(zeros({2})), DTypeError);
}

TEST_CASE("losses keep their options") {
  const Tensor logits = tensor<float>({1, 2, 3, 4}).view({2, 2});
  const Tensor targets = tensor<int64_t>({0, -100});
  const nn::CrossEntropyLoss loss;
  CHECK(loss(logits, targets).item<double>() == doctest::Approx(std::log(1 + std::exp(1.0))));
  const nn::MSELoss total(Reduction::sum);
  CHECK(total(logits, zeros({2, 2})).item<double>() == doctest::Approx(30));
}
