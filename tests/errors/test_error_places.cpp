// Errors name the module, file or mask in which they arose.

#include <fstream>
#include <sstream>

#include <doctest/doctest.h>

#include <sash/nn/layers/activation.h>
#include <sash/nn/layers/linear.h>
#include <sash/nn/layers/module_list.h>
#include <sash/nn/layers/sequential.h>
#include <sash/nn/models/causal_lm.h>
#include <sash/ops/attention/exact/attention.h>
#include <sash/ops/elementwise/binary.h>
#include <sash/optim/checkpoint.h>
#include <sash/optim/sgd.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

using namespace sash;
using sash::testing::expect_errors;
using sash::testing::thrown_by;

namespace {

struct Block : nn::Module {
  nn::Linear& fc = register_module<nn::Linear>("fc", 3, 4);

  Tensor operator()(const Tensor& x, const Tensor& y) {
    return named_errors([&] { return fc(x) + y; });
  }
};

struct Net : nn::Module {
  nn::ModuleList<Block>& blocks = register_module<nn::ModuleList<Block>>("blocks");
  nn::Sequential& top =
      register_module("top", nn::Sequential(nn::ReLU(), nn::Sequential(nn::Linear(4, 2))));
  int64_t bad_block = -1;

  explicit Net(int64_t count) {
    for (int64_t i = 0; i < count; ++i) blocks.emplace();
  }
  Tensor forward(const Tensor& x) override {
    for (int64_t i = 0; i < blocks.size(); ++i) {
      blocks[i](x, zeros({i == bad_block ? 7 : 4}));
    }
    return top(x);
  }
};

const std::string kWrongLinear = "Linear: expected a last extent of 3, got [2, 5]";

}  // namespace

// It would break a row with braces in its call over four lines.
// clang-format off

TEST_CASE("errors in modules give the module's full name") {
  Net net(2);
  const Tensor x = zeros({2, 5});
  net.bad_block = 1;
  expect_errors({
      {"ShapeError: in blocks.0.fc: " + kWrongLinear, [&] { net(x); }},
      {"ShapeError: in blocks.0.fc: " + kWrongLinear, [&] { net.forward(x); }},
      {"ShapeError: in top.1.0: Linear: expected a last extent of 4, got [2, 5]",
       [&] { net.top(x); }},
      {"ShapeError: in blocks.1: add: expected shapes that broadcast together, got [2, 4] and [7]",
       [&] { net(zeros({2, 3})); }},
      {"ShapeError: " + kWrongLinear, [&] { nn::Linear(3, 4)(x); }},  // it has no name
  });
}

TEST_CASE("names of modules follow them into their parent") {
  Net net(1);
  Net moved(std::move(net));
  const Tensor x = zeros({2, 5});
  expect_errors({{"ShapeError: in blocks.0.fc: " + kWrongLinear, [&] { moved(x); }}});

  struct Pair : nn::Module {
    Net& left = register_module<Net>("left", 1);
    Net& right;
    explicit Pair(Net&& net) : right(register_module("right", std::move(net))) {}
  } pair(std::move(moved));
  nn::Sequential a(nn::ReLU(), nn::Linear(3, 1)), b(nn::Linear(3, 2));
  nn::Sequential parent(nn::ReLU(), std::move(a));
  static_cast<nn::Sequential&>(parent[1]) = std::move(b);  // takes over the name 1
  expect_errors({
      {"ShapeError: in right.blocks.0.fc: " + kWrongLinear, [&] { pair.right(x); }},
      {"ShapeError: in 1.0: " + kWrongLinear, [&] { parent(x); }},
  });
}

TEST_CASE("errors in a transformer name the layer, whichever module is called") {
  nn::CausalLM model({.vocab = 5, .context = 4, .dim = 4, .heads = 2, .layers = 2});
  expect_errors({
      {"IndexError: in token_embedding: embedding: expected indices in [0, 5), got 9 at [0]",
       [&] { model.token_embedding(tensor<int64_t>({9})); }},
      {"ShapeError: in layers.1.self_attn: MultiheadAttention: expected x of shape [B, S, 4], got "
       "[1, 2, 3]",
       [&] { model.layers[1].self_attn(zeros({1, 2, 3})); }},
      {"ShapeError: in layers.1.norm1: layer_norm: expected an input whose last axes are [4], got "
       "[1, 2, 3]",
       [&] { model.layers[1](zeros({1, 2, 3}), AttentionMask::causal()); }},
  });
}

TEST_CASE("errors of masks show the mask, abridged") {
  const Tensor q = zeros({2, 2, 3, 4});
  const auto attend = [&](const AttentionMask& mask) {
    return [&q, mask] { attention(q, q, q, {.mask = mask}); };
  };
  const auto lengths = [](const std::vector<int32_t>& values) {
    return AttentionMask::key_lengths(tensor(values, {static_cast<int64_t>(values.size())}));
  };
  const AttentionMask three = AttentionMask::causal() & lengths({1, 2, 3});
  const AttentionMask long_one = AttentionMask::causal() & lengths({1, 4});
  CHECK(three.to_string().find("causal & key_lengths") == 0);
  expect_errors({
      {"ShapeError: attention_mask: expected a length for each of 2 batches, got [3]; the mask is "
       "causal & key_lengths",
       attend(three)},
      {"ValueError: attention: expected key lengths in [0, 3], got 4 for batch 1; the mask is "
       "causal & key_lengths",
       attend(long_one)},
      {"ValueError: attention: expected key lengths in [0, 3], got 4 for batch 1; the mask is "
       "causal | key_lengths",
       attend(AttentionMask::causal() | lengths({1, 4}))},
  });
  AttentionMask many = AttentionMask::dilated_window(1, 1, {1, 2, 3});
  for (int64_t i = 0; i < 50; ++i) many = many | AttentionMask::global({i});
  const std::string error = thrown_by(attend(many));
  CHECK(error.starts_with("ValueError: "));
  CHECK(error.size() < 232);
}

TEST_CASE("files of other formats are named in the error") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.pt");
  using namespace std::string_literals;
  const std::string zip = "PK\x03\x04"s + std::string(26, '\1');
  const std::string gguf = "GGUF\3\0\0\0{\0\0\0"s;  // where a header's length would be
  const std::vector<std::pair<std::string, std::string>> cases{
      {zip + "archive/data.pkl", "a PyTorch zip archive; save it as safetensors"},
      {zip + "weight.npy", "a NumPy .npz archive; save it as safetensors"},
      {zip + "else", "a zip archive; if it is PyTorch's or NumPy's, save it as safetensors"},
      {"\x80\2}q\0."s, "a Python pickle, PyTorch's older format for one; save it as safetensors"},
      {gguf, "a GGUF file; read it by GgufFile"},
      {"\x1f\x8b\x08\0\0\0\0\0\0\0"s, "compressed by gzip; decompress it first"},
      {"\x93NUMPY\1\0v\0{'descr'"s, "a NumPy array; save it as safetensors"},
      {"{}", "JSON text, not the weights themselves"},
      {"a,b\n1,2\n", "text, CSV by its commas; read it by nn::data::read_csv"},
      {"one line\nand another, here\n", "text, not the weights themselves"},
      {"{\"abcd\":{\"a\": 1}}", "JSON text, not the weights themselves"},
      {"<!DOCTYPE html>", "HTML or XML, an error page for one, not the file itself"},
      {"version https://git-lfs.github.com/spec/v1\n",
       "a Git LFS pointer; fetch the file itself by git lfs pull"}};
  nn::Linear model(2, 2);
  optim::SGD sgd(model.parameters());
  for (const auto& [bytes, kind] : cases) {
    std::ofstream(path, std::ios::binary) << bytes;
    const std::string message = "FormatError: load_safetensors: '" + path + "' is " + kind;
    expect_errors({
        {message, [&] { load_safetensors(path); }},
        {message, [&] { optim::load_checkpoint(path, model, sgd); }},
        {message, [&] { optim::load_model(path, model); }},
    });
  }
  std::ofstream(path, std::ios::binary) << "{\0\0\0\0\0\0\0 "s;  // cut short
  expect_errors({{"FormatError: load_safetensors: expected a header of 123 bytes, got only 1 bytes "
                  "after its length; in '" + path + "'",
                  [&] { load_safetensors(path); }}});
}

TEST_CASE("shapes, dtypes and devices print") {
  std::ostringstream out;
  out << zeros({2, 3}).shape() << ' ' << Shape{} << ' ' << DType::boolean << ' ' << kCPU;
  CHECK(out.str() == "[2, 3] [] bool cpu");
}
