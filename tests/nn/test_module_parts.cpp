// What a training script does to a module: options in braces, hooks, freezing, copies, buffers that
// are not saved, dtypes, padding, several inputs.
#include <doctest/doctest.h>

#include <sash/core/backend/backend.h>
#include <sash/nn/attention/multihead_attention.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/dropout.h>
#include <sash/nn/layers/embedding.h>
#include <sash/nn/layers/flatten.h>
#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/loss.h>
#include <sash/nn/layers/sequential.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/norm/softmax.h>
#include <sash/optim/adam.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/random.h>

#include "../support/compare.h"
#include "../support/expect_error.h"
#include "../support/names.h"
#include "../support/small_models.h"

using namespace sash;
using sash::testing::all_same;
using sash::testing::expect_errors;
using sash::testing::keys;
using sash::testing::kInts;
using sash::testing::Names;

namespace {

struct MLP : nn::Module {
  SASH_MODULE(nn::Linear, fc1, 4, 16, {.bias = false});
  SASH_MODULE(nn::Linear, fc2, 16, 2);
  Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
};

/// Two inputs, and a table that is not saved.
struct Mixed : nn::ModuleOf<Mixed> {
  nn::Linear& left = register_module<nn::Linear>("left", 3, 2, {.bias = false});
  nn::Linear& right = register_module<nn::Linear>("right", 3, 2, {.bias = false});
  Tensor table = register_buffer("table", arange(0, 2).to(DType::float32), false);
  Tensor count = register_buffer("count", zeros({}, kInts));

  Tensor forward(const Tensor& a, const Tensor& b) { return left(a) + right(b) + table; }
};

}  // namespace

TEST_CASE("modules: options in braces") {
  struct Parts : nn::Module {
    nn::Linear& linear = register_module<nn::Linear>("a", 2, 3, {.bias = false});
    nn::LayerNorm& norm = register_module<nn::LayerNorm>("b", 4, {.bias = false});
    nn::Embedding& table = register_module<nn::Embedding>("c", 5, 2, {.padding_idx = 1});
    nn::MultiheadAttention& attention =
        register_module<nn::MultiheadAttention>("d", 4, 2, {.bias = false});
    nn::CausalLM& model = register_module<nn::CausalLM>(
        "e", {.vocab = 5, .context = 4, .dim = 4, .heads = 2, .layers = 1});
    nn::CrossEntropyLoss& loss =
        register_module<nn::CrossEntropyLoss>("f", {.label_smoothing = 0.1});
  } parts;
  CHECK_FALSE(parts.linear.bias.defined());
  CHECK_FALSE(parts.norm.bias.defined());
  CHECK(parts.table.describe() == "Embedding(5, 2, padding_idx 1)");
  CHECK(parts.model.num_parameters() > 0);
  const nn::LinearOptions named{.bias = false};
  nn::LinearOptions changeable = named;
  CHECK_FALSE(parts.register_module<nn::Linear>("g", 2, 3, named).bias.defined());
  CHECK_FALSE(parts.register_module<nn::Linear>("h", 2, 3, changeable).bias.defined());
  CHECK(parts.register_module<nn::Linear>("i", 2, 3, nn::LinearOptions{}).bias.defined());
}

TEST_CASE("modules: forward of any arguments and results") {
  struct Sizes : nn::ModuleOf<Sizes> {
    std::vector<int64_t> forward(const Tensor& x, int64_t times) { return {x.numel() * times}; }
  } sizes;
  CHECK(sizes(zeros({2, 3}), 2) == std::vector<int64_t>{12});
  nn::Module& base = sizes;
  CHECK_THROWS_WITH_AS(base(zeros({2})), doctest::Contains("Sizes"), NotImplemented);

  manual_seed(1);
  Mixed mixed;
  const Tensor a = randn({4, 3}), b = randn({4, 3});
  std::vector<Tensor> seen;
  mixed.register_forward_hook([&](const nn::Module&, std::span<const Tensor> in, const Tensor&) {
    seen.assign(in.begin(), in.end());
    return Tensor();
  });
  mixed(a, b);
  CHECK(seen.size() == 2);
  CHECK(seen.at(1).is_same(b));
}

TEST_CASE("modules: forward hooks see inputs and output, may replace it, and can be removed") {
  manual_seed(1);
  MLP mlp;
  const Tensor x = randn({3, 4}), expected = mlp(x);
  std::vector<std::string> seen;
  nn::HookHandle first = mlp.fc1.register_forward_hook(
      [&](const nn::Module& module, std::span<const Tensor> inputs, const Tensor& output) {
        seen.push_back(module.describe());
        CHECK(inputs.size() == 1);
        CHECK(inputs[0].is_same(x));
        CHECK(output.shape() == Shape{3, 16});
        return Tensor();
      });
  CHECK(all_same(mlp(x), expected));
  CHECK(seen == Names{"Linear(4 -> 16)"});
  nn::HookHandle second = mlp.register_forward_hook(
      [](const nn::Module&, std::span<const Tensor>, const Tensor& y) { return y * 2.0; });
  nn::HookHandle third = mlp.register_forward_hook(
      [](const nn::Module&, std::span<const Tensor>, const Tensor& y) { return y + 1.0; });
  CHECK(all_same(mlp(x), expected * 2.0 + 1.0));
  second.remove();
  second.remove();
  CHECK(all_same(mlp(x), expected + 1.0));
  first.remove();
  third.remove();
  CHECK(all_same(mlp(x), expected));
  CHECK(seen.size() == 3);

  // A hook that removes itself, one on a module that moves, and a handle that outlives its module.
  nn::HookHandle once;
  int calls = 0;
  once = mlp.register_forward_hook([&](const nn::Module&, std::span<const Tensor>, const Tensor&) {
    once.remove();
    ++calls;
    return Tensor();
  });
  MLP moved = std::move(mlp);
  moved(x);
  moved(x);
  CHECK(calls == 1);
  nn::HookHandle dangling;
  {
    nn::ReLU gone;
    dangling = gone.register_forward_hook(
        [](const nn::Module&, std::span<const Tensor>, const Tensor&) { return Tensor(); });
  }
  dangling.remove();
}

TEST_CASE("modules: pre-hooks run before the module, and can be removed") {
  MLP mlp;
  const Tensor x = ones({3, 4});
  std::vector<std::string> seen;
  nn::HookHandle before = mlp.fc2.register_forward_pre_hook(
      [&](const nn::Module& module, std::span<const Tensor> inputs) {
        CHECK(inputs.size() == 1);
        seen.push_back("before " + module.describe());
      });
  const auto note = [&](const nn::Module& module, std::span<const Tensor>, const Tensor&) {
    seen.push_back("after " + module.describe());
    return Tensor();
  };
  mlp.fc1.register_forward_hook(note);
  mlp.fc2.register_forward_hook(note);
  mlp(x);
  CHECK(seen == Names{"after Linear(4 -> 16)", "before Linear(16 -> 2, bias)",
                      "after Linear(16 -> 2, bias)"});
  before.remove();
  mlp(x);
  CHECK(seen.size() == 5);
}

TEST_CASE("modules: hooks of modules with several inputs, and errors that leave a hook") {
  Mixed mixed;
  size_t inputs_seen = 0;
  mixed.register_forward_hook(
      [&](const nn::Module&, std::span<const Tensor> inputs, const Tensor&) {
        inputs_seen = inputs.size();
        return Tensor();
      });
  mixed(ones({1, 3}), ones({1, 3}));
  CHECK(inputs_seen == 2);
  nn::MSELoss loss;
  inputs_seen = 0;
  loss.register_forward_hook([&](const nn::Module&, std::span<const Tensor> inputs, const Tensor&) {
    inputs_seen = inputs.size();
    return Tensor();
  });
  loss(ones({2}), zeros({2}));
  CHECK(inputs_seen == 2);
  nn::MultiheadAttention attention(4, 2);
  attention.register_forward_hook(
      [&](const nn::Module&, std::span<const Tensor> inputs, const Tensor&) {
        inputs_seen = inputs.size();
        return Tensor();
      });
  const Tensor q = randn({1, 3, 4});
  attention(q, q, q, AttentionMask::causal());
  CHECK(inputs_seen == 3);
  nn::Sequential net(nn::ReLU(), nn::Linear(3, 2));
  net[0].register_forward_hook(
      [](const nn::Module&, std::span<const Tensor>, const Tensor& y) { return y.view({5}); });
  expect_errors({
      {"ShapeError: in 0: view: expected a shape of 3 elements for [3], got [5]",
       [&] { net(ones({3})); }},
  });
}

TEST_CASE("modules: frozen parameters get no gradient, and cost no memory") {
  manual_seed(2);
  nn::CausalLM model = sash::testing::small_lm({.vocab = 7, .context = 4});
  const Tensor tokens = randint(0, 7, {2, 4});
  model(tokens).sum().backward();
  model.freeze("token_embedding.*|layers\\.0\\..*");
  for (const auto& [name, parameter] : model.named_parameters()) {
    const bool frozen = name.starts_with("token_embedding") || name.starts_with("layers.0.");
    CHECK(parameter.requires_grad() == !frozen);
    CHECK(parameter.grad().defined() == !frozen);
  }
  optim::AdamW adamw(model.parameters());
  adamw.zero_grad();
  model(tokens).sum().backward();
  adamw.step();
  size_t moments = 0, trained = 0;
  for (const std::string& key : keys(adamw.state_dict())) moments += key.ends_with("exp_avg");
  for (const Tensor& p : model.parameters()) trained += p.grad().defined();
  CHECK(moments == trained);
  CHECK(trained < model.parameters().size());
  model.requires_grad_(true, "layers\\.0\\.norm1\\..*");
  adamw.zero_grad();
  model(tokens).sum().backward();
  size_t again = 0;
  for (const Tensor& p : model.parameters()) again += p.grad().defined();
  CHECK(again == trained + 2);
  model.requires_grad_(false);
  CHECK_FALSE(model(tokens).requires_grad());
  model.requires_grad_();
  for (const Tensor& p : model.parameters()) CHECK(p.requires_grad());
}

TEST_CASE("modules: a frozen layer keeps no input for its gradient") {
  nn::Linear layer(64, 64);
  const auto held = [&](bool frozen) {
    layer.requires_grad_(!frozen);
    const Tensor x = randn({256, 64}, {.requires_grad = true});
    const int64_t before = memory_stats(kCPU).current;
    const Tensor y = layer(x * 2.0);  // x * 2 lives only if the layer keeps it
    return memory_stats(kCPU).current - before;
  };
  const int64_t rows = 256 * 64 * 4;
  CHECK(held(true) < 2 * rows);
  CHECK(held(false) >= 2 * rows);
}

TEST_CASE("modules: deep copies") {
  manual_seed(3);
  MLP mlp;
  mlp.fc1.freeze();
  mlp.fc2.eval();
  mlp.to(DType::float64);
  const Tensor x = randn({3, 4}, {.dtype = DType::float64});
  mlp(x).sum().backward();
  const RandomState state = random_state();
  MLP copy = nn::deep_copy(mlp);
  CHECK(random_state() == state);
  CHECK(all_same(copy(x), mlp(x)));
  CHECK_FALSE(copy.fc1.weight.requires_grad());
  CHECK(copy.fc2.weight.requires_grad());
  CHECK_FALSE(copy.fc2.weight.grad().defined());
  CHECK(copy.fc1.is_training());
  CHECK_FALSE(copy.fc2.is_training());
  const Tensor before = mlp(x).detach();
  copy.fc2.weight.detach().zero_();
  CHECK(all_same(mlp(x), before));
  CHECK_FALSE(all_same(copy(x), before));

  const nn::Sequential net(nn::Linear(2, 3), nn::Linear(3, 1));
  nn::Sequential other =
      nn::deep_copy(net, [] { return nn::Sequential(nn::Linear(2, 3), nn::Linear(3, 1)); });
  CHECK(all_same(other.named_parameters()[0].second, net.named_parameters()[0].second));
  CHECK_FALSE(other.named_parameters()[0].second.is_same(net.named_parameters()[0].second));

  // Buffers, the unsaved too, and tied weights.
  Mixed mixed;
  mixed.table.fill_(5);
  mixed.count.fill_(3);
  const Mixed same = nn::deep_copy(mixed);
  CHECK(same.table.to_vector<float>() == std::vector<float>{5, 5});
  CHECK(same.count.item<int64_t>() == 3);
  struct Tied : nn::Module {
    nn::Embedding& table = register_module<nn::Embedding>("table", 3, 2);
    nn::Linear& head = register_module("head", nn::Linear(table.weight));
  } tied;
  const Tied twin = nn::deep_copy(tied);
  CHECK(twin.head.weight.is_same(twin.table.weight));
  CHECK(all_same(twin.head.weight, tied.head.weight));
}

TEST_CASE("modules: a backward pass notices weights that were replaced since") {
  nn::Linear layer(2, 1), other(2, 1);
  const Tensor x = ones({1, 2}).requires_grad_();
  const Tensor copied = layer(x).sum();
  layer.copy_from(other);
  CHECK_THROWS_AS(copied.backward(), AutogradError);
  const Tensor converted = layer(x).sum();
  layer.to(DType::float64);
  CHECK_THROWS_AS(converted.backward(), AutogradError);
  layer.to(DType::float32);
  const Tensor kept = layer(x).sum();
  layer.to(DType::float32).to(kCPU);  // nothing to do
  kept.backward();
}

TEST_CASE("modules: buffers that are not saved") {
  Mixed mixed;
  CHECK(keys(mixed.named_buffers()) == Names{"count", "table"});
  CHECK(keys(mixed.state_dict()) == Names{"count", "left.weight", "right.weight"});
  mixed.load_state_dict(mixed.state_dict());
  mixed.to(DType::float64);
  CHECK(mixed.table.dtype() == DType::float64);
  CHECK(mixed.count.dtype() == DType::int64);
}

TEST_CASE("modules: dtypes by name, device and dtype at once") {
  Mixed mixed;
  mixed.half();
  CHECK(mixed.left.weight.dtype() == DType::float16);
  CHECK(mixed.bfloat16().parameters()[0].dtype() == DType::bfloat16);
  CHECK(mixed.float64().parameters()[0].dtype() == DType::float64);
  CHECK(mixed.float32().parameters()[0].dtype() == DType::float32);
  mixed.to(kCPU, DType::float64);
  CHECK(mixed.table.dtype() == DType::float64);
  CHECK(mixed.count.dtype() == DType::int64);
}

TEST_CASE("modules: the padding row of an embedding is zeros and stays") {
  manual_seed(4);
  nn::Embedding table(5, 3, {.padding_idx = -4});
  CHECK(table.weight[1].to_vector<float>() == std::vector<float>{0, 0, 0});
  CHECK(table.weight[0].to_vector<float>() != std::vector<float>{0, 0, 0});
  const Tensor index = tensor({{1, 0}, {4, 1}});
  const Tensor y = table(index);
  (y * y + y).sum().backward();
  CHECK(table.weight.grad()[1].to_vector<float>() == std::vector<float>{0, 0, 0});
  CHECK(table.weight.grad()[4].to_vector<float>() != std::vector<float>{0, 0, 0});
  // A row that was loaded is still looked up.
  table.weight.detach()[1] = 2;
  CHECK(table(index)[0][0].to_vector<float>() == std::vector<float>{2, 2, 2});
}

TEST_CASE("modules: losses and activations are their ops") {
  manual_seed(5);
  const Tensor x = randn({4, 3}), y = rand({4, 3}), t = tensor({0, 2, 1, 0});
  const Tensor logp = log_softmax(x);
  CHECK(all_same(nn::MSELoss()(x, y), mse_loss(x, y)));
  CHECK(all_same(nn::L1Loss(Reduction::sum)(x, y), l1_loss(x, y, Reduction::sum)));
  CHECK(all_same(nn::HuberLoss({.delta = 0.5})(x, y), huber_loss(x, y, {.delta = 0.5})));
  CHECK(all_same(nn::BCEWithLogitsLoss()(x, y), binary_cross_entropy_with_logits(x, y)));
  CHECK(all_same(nn::KLDivLoss({.reduction = Reduction::sum})(logp, y),
                 kl_div(logp, y, {.reduction = Reduction::sum})));
  CHECK(
      all_same(nn::NLLLoss({.ignore_index = 2})(logp, t), nll_loss(logp, t, {.ignore_index = 2})));
  const Tensor weight = tensor({1.0, 2.0, 3.0});
  CHECK(all_same(nn::CrossEntropyLoss({.label_smoothing = 0.1, .weight = weight})(x, t),
                 cross_entropy(x, t, {.label_smoothing = 0.1, .weight = weight})));
  CHECK(all_same(nn::SmoothL1Loss({.beta = 0.5})(x, y), smooth_l1_loss(x, y, {.beta = 0.5})));
  CHECK(all_same(nn::LeakyReLU(0.3)(x), leaky_relu(x, 0.3)));
  CHECK(all_same(nn::ELU()(x), elu(x)));
  CHECK(nn::Identity()(x).is_same(x));
  CHECK(nn::LeakyReLU().describe() == "LeakyReLU(0.01)");
  CHECK(all_same(nn::Softmax()(x), softmax(x)));
  CHECK(all_same(nn::Softplus()(x), softplus(x)));
  CHECK(all_same(nn::LogSoftmax(0)(x), log_softmax(x, 0)));
  CHECK(nn::Softmax(1).describe() == "Softmax(1)");
}

// clang-format off
TEST_CASE("wrong calls: parts of modules") {
  MLP mlp;
  Mixed mixed;
  nn::Linear small(2, 3);
  expect_errors({
      {"ValueError: MLP.register_forward_hook: expected a function, got an empty one",
       [&] { mlp.register_forward_hook({}); }},
      {"ValueError: MLP.register_forward_pre_hook: expected a function, got an empty one",
       [&] { mlp.register_forward_pre_hook({}); }},
      {"ValueError: MLP.requires_grad_: expected a pattern that matches a parameter, got 'fc3.*'",
       [&] { mlp.freeze("fc3.*"); }},
      {"ValueError: MLP.requires_grad_: expected a pattern that matches a parameter, got 'weight'",
       [&] { mlp.requires_grad_(true, "weight"); }},
      {"ValueError: MLP.requires_grad_: expected a pattern that matches a parameter, got ''",
       [&] { mlp.freeze(""); }},
      {"ValueError: MLP.requires_grad_: expected a regular expression, got '(': Mismatched '(' and ')' in regular expression", [&] { mlp.freeze("("); }},
      {"DTypeError: MLP.to: expected a floating dtype, got bool", [&] { mlp.to(DType::boolean); }},
      {"DTypeError: MLP.to: expected a floating dtype, got int32",
       [&] { mlp.to(kCPU, DType::int32); }},
      {"DTypeError: Linear.to: expected a floating dtype, got uint8",
       [&] { small.to(kCPU, DType::uint8); }},
      {"ValueError: Linear.copy_from: missing weight, bias; unexpected fc1.weight, fc2.weight, fc2.bias",
       [&] { small.copy_from(mlp); }},
      {"ValueError: Linear.copy_from: mismatched weight (expected shape [2, 2], got [3, 2]), bias "
       "(expected shape [2], got [3])",
       [&] { nn::deep_copy(small, [] { return nn::Linear(2, 2); }); }},
      {"ValueError: Linear.copy_from: unexpected bias",
       [&] { nn::deep_copy(small, [] { return nn::Linear(2, 3, {.bias = false}); }); }},
      {"ValueError: Sequential.copy_from: expected 3 modules, got 1",
       [&] { nn::Sequential(nn::ReLU(), nn::ReLU()).copy_from(nn::Sequential()); }},
      {"ValueError: Mixed.register_buffer: expected a new name, got 'table', which is taken",
       [&] { mixed.register_buffer("table", zeros({2})); }},
      {"ValueError: Mixed.register_buffer: expected a new name, got 'left', which is taken",
       [&] { mixed.register_buffer("left", zeros({2}), false); }},
      {"ValueError: Mixed.register_buffer: expected a tensor for 'x', got an undefined one",
       [&] { mixed.register_buffer("x", Tensor(), false); }},
      {"ValueError: Mixed.load_state_dict: missing count, left.weight, right.weight; unexpected table",
       [&] { mixed.load_state_dict({{"table", zeros({2})}}); }},
      {"IndexError: Embedding: expected a padding_idx in [-4, 4), got 4",
       [] { nn::Embedding(4, 2, {.padding_idx = 4}); }},
      {"IndexError: Embedding: expected a padding_idx in [-4, 4), got -5",
       [] { nn::Embedding(4, 2, {.padding_idx = -5}); }},
      {"IndexError: in fc1: softmax: expected an axis in [-2, 2) for rank 2, got 2",
       [&] { mlp.fc1.register_forward_hook([](const nn::Module&, std::span<const Tensor>, const Tensor& y) { return softmax(y, 2); }); mlp(ones({1, 4})); }},
      {"NotImplemented: MSELoss: it has no forward(const Tensor&)",
       [] { nn::MSELoss loss; nn::Module& module = loss; module(ones({1})); }},
  });
}
// clang-format on

TEST_CASE("flatten: all axes but the first, or those that are named") {
  const Tensor x = randn({2, 3, 4, 5});
  CHECK(all_same(nn::Flatten()(x), x.view({2, 60})));
  CHECK(nn::Flatten(0, 1)(x).shape() == Shape{6, 4, 5});
}
