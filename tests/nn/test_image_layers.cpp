// Layers that are faces of ops, and lists and dictionaries of modules and parameters.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include <sash/sash.h>

#include "../support/compare.h"

using namespace sash;
using namespace sash::testing;

namespace {

std::vector<std::string> keys(const StateDict& dict) {
  std::vector<std::string> names;
  for (const auto& entry : dict) names.push_back(entry.first);
  return names;
}

using Names = std::vector<std::string>;

struct Heads : nn::Module {
  SASH_MODULE(nn::ModuleDict<nn::Linear>, heads);
  SASH_MODULE(nn::ParameterList, scales);

  Heads() {
    heads.emplace("policy", 3, 2);
    heads.insert("value", nn::Linear(3, 1, {.bias = false}));
    for (int i = 0; i < 2; ++i) scales.append(full({1}, i + 1));
  }
  Tensor forward(const Tensor& x) override {
    Tensor y = zeros({});
    int64_t i = 0;
    for (const auto& [name, head] : heads) y = y + (*head)(x).sum() * scales[i++];
    return y;
  }
};

}  // namespace

TEST_CASE("layers: those that change images are their ops") {
  manual_seed(1);
  const Tensor x = randn({2, 4, 5, 6});
  nn::GroupNorm norm(2, 4);
  CHECK(all_same(norm(x), group_norm(x, 2, norm.weight, norm.bias)));
  CHECK(keys(norm.state_dict()) == Names{"weight", "bias"});
  CHECK(nn::GroupNorm(2, 4, {.affine = false}).parameters().empty());
  CHECK(norm.describe() == "GroupNorm(2 of 4, affine)");
  nn::ConvTranspose2d up(4, 6, {3, 2}, {.stride = 2, .output_padding = 1, .groups = 2});
  CHECK(up.weight.shape() == Shape{4, 3, 3, 2});
  CHECK(up.bias.shape() == Shape{6});
  CHECK(abs(up.weight).max().item<double>() <= 1 / std::sqrt(18.0));
  CHECK(abs(up.weight).max().item<double>() >= 0.9 / std::sqrt(18.0));
  CHECK(up(x).shape() == Shape{2, 6, 12, 13});
  CHECK(all_same(up(x), conv_transpose2d(x, up.weight, up.bias,
                                         {.stride = 2, .output_padding = 1, .groups = 2})));
  CHECK(up.describe() == "ConvTranspose2d(4 -> 6, kernel 3 x 2, bias)");
  CHECK(all_same(nn::AdaptiveAvgPool2d({2, 3})(x), adaptive_avg_pool2d(x, {2, 3})));
  const InterpolateOptions twice{.scale_factor = 2, .mode = InterpolateMode::bilinear};
  CHECK(all_same(nn::Upsample(twice)(x), interpolate(x, twice)));
  nn::AvgPool2d pool(3, {.padding = 1, .count_include_pad = false});
  CHECK(all_same(pool(ones({1, 1, 6, 6})), ones({1, 1, 2, 2})));
}

TEST_CASE("layers: a transposed convolution is the adjoint of the convolution") {
  manual_seed(2);
  const TensorOptions doubles{.dtype = DType::float64};
  const Tensor x = randn({2, 4, 5, 6}, doubles), weight = randn({4, 3, 3, 2}, doubles);
  const Tensor y = conv_transpose2d(x, weight, {}, {.stride = 2, .padding = 1});
  const Tensor other = randn(y.shape(), doubles);
  const Tensor back = conv2d(other, weight, {}, {.stride = 2, .padding = 1});
  CHECK(sum(y * other).item<double>() == doctest::Approx(sum(x * back).item<double>()));
}

TEST_CASE("layers: dictionaries of modules and lists of parameters") {
  Heads model;
  CHECK(keys(model.state_dict()) == Names{"heads.policy.weight", "heads.policy.bias",
                                          "heads.value.weight", "scales.0", "scales.1"});
  CHECK(model.heads.size() == 2);
  CHECK(model.heads.contains("value"));
  CHECK_FALSE(model.heads.contains("values"));
  CHECK(model.heads["policy"].weight.shape() == Shape{2, 3});
  CHECK(model.scales.size() == 2);
  model(ones({1, 3})).backward();
  for (const Tensor& scale : model.scales) CHECK(scale.grad().defined());
  Heads moved = std::move(model);
  CHECK(&moved.heads["value"] == moved.heads.children()[1].second);
  moved.to(DType::float64);
  CHECK(moved.scales[1].dtype() == DType::float64);
}

TEST_CASE("layers: a decoder reads its memory, and hooks see its layers") {
  manual_seed(3);
  nn::TransformerDecoder model({.dim = 8, .heads = 2, .layers = 2, .dropout = 0.5});
  const Tensor x = randn({2, 5, 8}), memory = randn({2, 3, 8});
  CHECK(model.layers[0].describe() == "TransformerDecoderLayer(relu)");
  int calls = 0;
  model.layers[1].multihead_attn->register_forward_pre_hook(
      [&](const nn::Module&, std::span<const Tensor>) { ++calls; });
  model.eval();
  const AttentionMask first = AttentionMask::key_lengths(tensor<int32_t>({1, 1}));
  const Tensor y = model(x, memory, AttentionMask::causal(), first);
  CHECK(calls == 1);
  Tensor changed = memory.clone();
  changed[{Slice(), Slice(1)}] = 0;  // what the mask hides
  CHECK(all_same(y, model(x, changed, AttentionMask::causal(), first)));
  changed[{Slice(), 0}] = 1;
  CHECK_FALSE(all_same(y, model(x, changed, AttentionMask::causal(), first)));
  model.train();
  CHECK_FALSE(all_same(model(x, memory), model(x, memory)));  // dropout
}
