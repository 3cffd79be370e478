// Wrong calls of modules, initialisers, optimizers and checkpoints.

#include <limits>

#include <doctest/doctest.h>

#include <sash/nn/attention/multihead_attention.h>
#include <sash/nn/init.h>
#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/dropout.h>
#include <sash/nn/layers/embedding.h>
#include <sash/nn/layers/layer_norm.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/module_list.h>
#include <sash/nn/layers/sequential.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/nn/models/transformer.h>
#include <sash/ops/attention/exact/packed_heads.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/ops/elementwise/compare.h>
#include <sash/ops/reduce/reduce.h>
#include <sash/optim/adam.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/clip.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr TensorOptions kVariable{.requires_grad = true};

struct Empty : nn::Module {};

}  // namespace

// It would break a row with braces in its call over four lines.
// clang-format off

TEST_CASE("wrong calls: layers") {
  const Tensor x = zeros({2, 3});
  expect_errors({
      {"ValueError: Linear: expected a positive in_features, got 0", [] { nn::Linear(0, 3); }},
      {"ShapeError: Linear: expected 2 axes, got [3]", [] { nn::Linear(zeros({3})); }},
      {"ShapeError: Linear: expected a last extent of 4, got [2, 3]", [&] { nn::Linear(4, 5)(x); }},
      {"ValueError: Linear: expected a tensor, got an undefined tensor",
       [&] { nn::Linear(4, 5)(Tensor()); }},
      {"ValueError: Embedding: expected a positive dim, got 0", [] { nn::Embedding(4, 0); }},
      {"DTypeError: embedding: expected indices of int64, got float32", [&] { nn::Embedding(4, 5)(x); }},
      {"ValueError: LayerNorm: expected a shape to normalise, got an empty one",
       [] { nn::LayerNorm(Shape{}); }},
      {"ValueError: LayerNorm: expected eps > 0, got 0", [] { nn::LayerNorm(4, {.eps = 0}); }},
      {"ShapeError: layer_norm: expected an input whose last axes are [4], got [2, 3]",
       [&] { nn::LayerNorm(4)(x); }},
      {"ValueError: Dropout: expected p in [0, 1], got 2", [] { nn::Dropout(2); }},
      {"IndexError: Sequential: expected an index below 1, got 1",
       [] { nn::Sequential{nn::ReLU()}[1]; }},
      {"IndexError: ModuleList: expected an index below 0, got -1", [] { nn::ModuleList<>()[-1]; }},
      {"ShapeError: split_packed_heads: expected a last extent divisible by 2 + 2 * 2, got [1, 4, "
       "9]",
       [] { split_packed_heads(zeros({1, 4, 9}), 2); }},
  });
}

TEST_CASE("wrong calls: attention modules and transformers") {
  const nn::CausalLMOptions small{.vocab = 5, .context = 4, .dim = 4, .heads = 2, .layers = 1};
  nn::CausalLM model(small);
  nn::MultiheadAttention attention(4, 2);
  expect_errors({
      {"ValueError: MultiheadAttention: expected dim divisible by heads, got 10 and 3",
       [] { nn::MultiheadAttention(10, 3); }},
      {"ValueError: MultiheadAttention: expected dropout in [0, 1], got -1",
       [] { nn::MultiheadAttention(4, 2, {.dropout = -1}); }},
      {"ShapeError: MultiheadAttention: expected x of shape [B, S, 4], got [2, 3, 5]",
       [&] { attention(zeros({2, 3, 5})); }},
      {"ShapeError: MultiheadAttention: expected k and v of one shape and q of their batch size, "
       "got [2, 3, 4], [2, 5, 4] and [2, 6, 4]",
       [&] { attention(zeros({2, 3, 4}), zeros({2, 5, 4}), zeros({2, 6, 4})); }},
      {"ValueError: MultiheadAttention: expected a positive number of heads, got 0",
       [] { nn::TransformerEncoderLayer({.dim = 8, .heads = 0}); }},
      {"ValueError: TransformerEncoder: expected a positive number of layers, got 0",
       [] { nn::TransformerEncoder({.dim = 8, .heads = 2, .layers = 0}); }},
      {"ValueError: CausalLM: expected a positive vocab, got 0",
       [] { nn::CausalLM({.context = 4}); }},
      {"ShapeError: CausalLM: expected a text of at most 4 tokens, one for each position of the "
       "model, got 5 tokens (0 before and 5 new); shorten it or generate fewer",
       [&] { model(zeros({1, 5}, kInts)); }},
      {"DTypeError: CausalLM: expected int64 tokens, got float32", [&] { model(zeros({1, 4})); }},
      {"IndexError: in token_embedding: embedding: expected indices in [0, 5), got 5 at [0, 1]",
       [&] { model(tensor(std::vector<int64_t>{0, 5}, {1, 2})); }},
      {"ValueError: CausalLM.generate: expected a prompt of at least one token, got none",
       [&] { model.generate({}, 1); }},
      {"ValueError: CausalLM.generate: expected a temperature of at least 0, got -1",
       [&] { model.generate({1}, 1, {.temperature = -1}); }},
  });
}

TEST_CASE("wrong calls: parts and modes of a module") {
  Empty module;
  const Tensor x = zeros({2}, kVariable);
  module.register_parameter("weight", x);
  expect_errors({
      {"NotImplemented: Empty: it has no forward(const Tensor&)", [&] { module(x); }},
      {"ValueError: Empty.register_parameter: expected a new name, got 'weight', which is taken",
       [&] { module.register_parameter("weight", x); }},
      {"ValueError: Empty.register_buffer: expected a name without dots, got 'a.b'",
       [&] { module.register_buffer("a.b", x); }},
      {"ValueError: Empty.register_module: expected a name, got an empty one",
       [&] { module.register_module<nn::ReLU>(""); }},
      {"ValueError: Empty.register_parameter: expected a tensor for 'bias', got an undefined one",
       [&] { module.register_parameter("bias", Tensor()); }},
      {"AutogradError: Empty.register_parameter: expected a leaf for 'bias', got the output of a "
       "recorded op",
       [&] { module.register_parameter("bias", x * 2); }},
      {"DTypeError: Empty.register_parameter: expected a floating dtype for 'bias', got int64",
       [&] { module.register_parameter("bias", zeros({2}, kInts)); }},
      {"DTypeError: Empty.to: expected a floating dtype, got int64",
       [&] { module.to(DType::int64); }},
      {"ValueError: Empty.load_state_dict: unexpected b; mismatched weight (expected shape [2], "
       "got [3])",
       [&] { module.load_state_dict({{"weight", zeros({3})}, {"b", x}}); }},
      {"ValueError: Empty.load_state_dict: missing weight; unexpected model.weight, step; the "
       "tensors are those of a checkpoint, which optim::load_model(path, model) reads",
       [&] { module.load_state_dict({{"model.weight", x}, {"step", x}}); }},
      {"ValueError: Empty.load_state_dict: expected each key once, got 'weight' twice",
       [&] { module.load_state_dict({{"weight", x}, {"weight", x}}); }},
  });
  CHECK(module.named_parameters().size() == 1);
}

TEST_CASE("wrong calls: initialisers") {
  const Tensor x = zeros({2, 3});
  expect_errors({
      {"ValueError: uniform_: expected low <= high, got 1 and 0",
       [&] { nn::init::uniform_(x, 1, 0); }},
      {"ValueError: uniform_: expected a range that float32 holds, got -3e+38 and 3e+38",
       [&] { nn::init::uniform_(x, -3e38, 3e38); }},
      {"ValueError: uniform_: expected a range that float32 holds, got 0 and inf",
       [&] { nn::init::uniform_(x, 0, kInfinity); }},
      {"ValueError: uniform_: expected a range that float32 holds, got -1e+39 and -1e+39",
       [&] { nn::init::uniform_(x, -1e39, -1e39); }},
      {"ValueError: uniform_: expected a range that float64 holds, got -1.5e+308 and 1.5e+308",
       [&] { nn::init::uniform_(x.to(DType::float64), -1.5e308, 1.5e308); }},
      {"ValueError: uniform_: expected a range that float16 holds, got 0 and 100000",
       [&] { nn::init::uniform_(x.to(DType::float16), 0, 1e5); }},
      {"ValueError: normal_: expected a standard deviation of at least 0, got -1",
       [&] { nn::init::normal_(x, 0, -1); }},
      {"ValueError: trunc_normal_: expected low < high, got 2 and -2",
       [&] { nn::init::trunc_normal_(x, 0, 1, 2, -2); }},
      {"ShapeError: xavier_uniform_: expected at least 2 axes, got [3]",
       [] { nn::init::xavier_uniform_(zeros({3})); }},
      {"ShapeError: xavier_normal_: expected at least 2 axes, got [3]",
       [] { nn::init::xavier_normal_(zeros({3})); }},
      {"DTypeError: kaiming_uniform_: expected a floating dtype, got int64",
       [] { nn::init::kaiming_uniform_(zeros({2, 3}, kInts)); }},
      {"ShapeError: kaiming_normal_: expected at least 2 axes, got []",
       [] { nn::init::kaiming_normal_(zeros({})); }},
      {"ValueError: constant_: expected a tensor, got an undefined tensor",
       [] { nn::init::constant_(Tensor(), 1); }},
  });
  // The widest ranges; and bounds are infinite where a fan is 0.
  const auto finite = [](const Tensor& y) { return all(isfinite(y)).item<bool>(); };
  CHECK(finite(nn::init::uniform_(x, -1.7e38, 1.7e38)));
  CHECK(finite(nn::init::uniform_(x.to(DType::float64), -8e307, 8e307)));
  CHECK(finite(nn::init::uniform_(x.to(DType::float16), -65504, 65504)));
  CHECK(nn::init::kaiming_uniform_(zeros({3, 0})).numel() == 0);
}

TEST_CASE("wrong calls: optimizers") {
  const Tensor x = zeros({2, 3}, kVariable);
  const std::vector<Tensor> one{x};
  optim::SGD sgd(one);
  expect_errors({
      {"ValueError: SGD: expected parameters, got none", [] { optim::SGD(std::vector<Tensor>{}); }},
      {"ValueError: SGD: expected a finite lr of at least 0, got -0.1",
       [&] { optim::SGD(one, {.lr = -0.1}); }},
      {"ValueError: SGD: expected momentum > 0 and dampening 0 for nesterov, got 0 and 0",
       [&] { optim::SGD(one, {.nesterov = true}); }},
      {"ValueError: Adam: expected beta1 in [0, 1), got 1",
       [&] { optim::Adam(one, {.beta1 = 1}); }},
      {"ValueError: AdamW: expected a finite weight_decay of at least 0, got -1",
       [&] { optim::AdamW(one, {.weight_decay = -1}); }},
      {"ValueError: AdamW: expected each parameter once, got one twice",
       [&] { optim::AdamW(std::vector<Tensor>{x, x}); }},
      {"ValueError: AdamW: expected leaves as parameters, got the output of a recorded op",
       [&] { optim::AdamW(std::vector<Tensor>{x * 2}); }},
      {"DTypeError: AdamW: expected floating parameters, got int64",
       [] { optim::AdamW(std::vector<Tensor>{zeros({2}, kInts)}); }},
      {"ValueError: SGD.set_lr: expected a finite lr of at least 0, got nan",
       [&] { sgd.set_lr(std::numeric_limits<double>::quiet_NaN()); }},
      {"IndexError: SGD.lr: expected a group below 1, got 3", [&] { sgd.lr(3); }},
      {"ValueError: SGD.load_state_dict: missing param_groups.0.lr, param_groups.0.momentum, "
       "param_groups.0.dampening, param_groups.0.weight_decay, param_groups.0.nesterov; unexpected "
       "state",
       [&] { sgd.load_state_dict({{"state", x}}); }},
      {"ValueError: clip_grad_norm_: expected a max_norm of at least 0, got -1",
       [&] { optim::clip_grad_norm_(one, -1); }},
      {"ValueError: clip_grad_norm_: expected parameters, got an undefined tensor",
       [] { optim::clip_grad_norm_({Tensor()}, 1); }},
      {"ValueError: clip_grad_value_: expected a limit of at least 0, got -1",
       [&] { optim::clip_grad_value_(one, -1); }},
  });
}

TEST_CASE("wrong calls: checkpoints") {
  const TemporaryFolder folder;
  const std::string path = folder.file("tensors");
  nn::Linear model(2, 3);
  optim::SGD sgd(model.parameters());
  save_safetensors(path, {{"x", zeros({2})}});
  expect_errors({
      {"IoError: load_safetensors: cannot open '/nowhere/x': No such file or directory",
       [] { optim::checkpoint_info("/nowhere/x"); }},
      {"IoError: save_safetensors: cannot create '/nowhere/x': No such file or directory",
       [&] { optim::save_checkpoint("/nowhere/x", model, sgd); }},
      {"FormatError: load_checkpoint: expected metadata 'step', got none; in '" + path + "'",
       [&] { optim::load_checkpoint(path, model, sgd); }},
      {"ValueError: Linear.load_state_dict: missing weight, bias; unexpected x; in '" + path + "'",
       [&] { optim::load_model(path, model); }},
  });
}
