#include <doctest/doctest.h>
#include <sash/nn/models/encoder_decoder.h>
#include <sash/ops/loss/cross_entropy.h>
#include <sash/optim/adam.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include <cmath>
#include <memory>
#include <span>

#include "../support/compare.h"
#include "../support/devices.h"
#include "../support/small_models.h"

/// Tiny models of each family against `transformers`: logits, every gradient, ten AdamW steps and
/// greedy decoding through caches past the window. parity/make_models.py made the files.
using namespace sash;
using namespace sash::testing;

namespace {

constexpr double kTolerance = 1e-5;  // float32, per tensor

class Reference {
 public:
  Reference(const std::string& family, Device device)
      : tensors_(load_safetensors(SASH_TEST_PARITY "/models/" + family + ".safetensors").tensors),
        device_(device) {}

  Tensor operator()(const std::string& name) const {
    const Tensor* tensor = find(tensors_, name);
    REQUIRE_MESSAGE(tensor, name);
    return tensor->to(device_);
  }
  // A tied head has its weight under the embedding's name.
  StateDict weights() const {
    StateDict part;
    for (const auto& [name, tensor] : tensors_) {
      if (name.starts_with("weight.")) part.emplace_back(name.substr(7), tensor);
    }
    if (!find(part, "head.weight") && find(tensors_, "weight.token_embedding.weight")) {
      part.emplace_back("head.weight", (*this)("weight.token_embedding.weight"));
    }
    return part;
  }

 private:
  StateDict tensors_;
  Device device_;
};

// What all of the configurations have in common.
nn::TransformerConfig llama_like() { return small_config({.vocab = 29, .rotary = false}); }

nn::LayerAttention layer(const AttentionMask& mask, double theta,
                         const nn::RotaryScaling& scaling = {}) {
  nn::RotaryOptions rotary;
  rotary.theta = theta;
  rotary.scaling = scaling;
  return {mask, rotary};
}

const AttentionMask kAll;

AttentionMask five() { return AttentionMask::causal_window(5); }

nn::TransformerConfig gpt2() {
  nn::TransformerConfig config = llama_like();
  config.kv_heads = 0;
  config.mlp_dim = 0;
  config.norm = nn::NormKind::layer_norm;
  config.norm_eps = 1e-5;
  config.norm_bias = config.qkv_bias = config.out_bias = config.mlp_bias = true;
  config.mlp = nn::MlpKind::gelu_tanh;
  config.max_positions = 32;
  config.tie_weights = true;
  return config;
}

nn::TransformerConfig gpt_neo() {
  nn::TransformerConfig config = gpt2();
  config.qkv_bias = false;
  config.scale = 1;
  config.attention = {{kAll, {}}, {five(), {}}};
  return config;
}

nn::TransformerConfig llama() {
  nn::TransformerConfig config = llama_like();
  nn::RotaryScaling scaling;
  scaling.kind = nn::RotaryScalingKind::llama3;
  scaling.factor = 8;
  scaling.original_context = 16;
  config.attention = {layer(kAll, 1e4, scaling)};
  return config;
}

nn::TransformerConfig mistral() {
  nn::TransformerConfig config = llama_like();
  config.attention = {layer(five(), 1e4)};
  return config;
}

nn::TransformerConfig qwen2() {
  nn::TransformerConfig config = llama_like();
  config.qkv_bias = true;
  config.attention = {layer(kAll, 1e6), layer(five(), 1e6)};
  return config;
}

nn::TransformerConfig qwen3() {
  nn::TransformerConfig config = llama_like();
  config.head_dim = 8;
  config.qk_norm = nn::QKNorm::per_head;
  config.attention = {layer(five(), 1e6), layer(kAll, 1e6)};
  return config;
}

nn::TransformerConfig phi3() {
  nn::TransformerConfig config = llama_like();
  config.heads = 2;
  config.norm_eps = 1e-5;
  nn::RotaryScaling scaling;
  scaling.kind = nn::RotaryScalingKind::longrope;
  scaling.factor = 8;
  scaling.original_context = 4;
  scaling.short_factor = {1, 1.1};
  scaling.long_factor = {1.5, 4};
  config.attention = {layer(five(), 1e4, scaling)};
  config.attention[0].rotary->dim = 4;
  return config;
}

nn::TransformerConfig gemma3() {
  nn::TransformerConfig config = llama_like();
  config.layers = 3;
  config.head_dim = 8;
  config.norm = nn::NormKind::rms_norm_unit_offset;
  config.norm_placement = nn::NormPlacement::around;
  config.qk_norm = nn::QKNorm::per_head;
  config.mlp = nn::MlpKind::geglu_tanh;
  config.scale = 1 / std::sqrt(6.0);
  config.embedding_scale = 4;
  config.tie_weights = true;
  nn::RotaryScaling scaling;
  scaling.kind = nn::RotaryScalingKind::linear;
  scaling.factor = 8;
  config.attention = {layer(five(), 1e4), layer(five(), 1e4), layer(kAll, 1e6, scaling)};
  return config;
}

nn::TransformerConfig gemma2() {
  nn::TransformerConfig config = gemma3();
  config.layers = 2;
  config.qk_norm = nn::QKNorm::none;
  config.attn_softcap = 3;
  config.logit_softcap = 4;
  config.attention = {layer(five(), 1e4), layer(kAll, 1e4)};
  return config;
}

nn::RotaryScaling yarn() {
  nn::RotaryScaling scaling;
  scaling.kind = nn::RotaryScalingKind::yarn;
  scaling.factor = 4;
  scaling.original_context = 16;
  scaling.beta_fast = 4;
  return scaling;
}

nn::TransformerConfig olmo3() {
  nn::TransformerConfig config = llama_like();
  config.norm_eps = 1e-5;
  config.norm_placement = nn::NormPlacement::after;
  config.qk_norm = nn::QKNorm::all_heads;
  nn::RotaryScaling scaling = yarn();
  scaling.attention_factor = 1.2;
  config.attention = {layer(five(), 1e4), layer(kAll, 1e4, scaling)};
  return config;
}

nn::TransformerConfig gpt_oss() {
  nn::TransformerConfig config = llama_like();
  config.head_dim = 8;
  config.norm_eps = 1e-5;
  config.qkv_bias = config.out_bias = config.mlp_bias = true;
  config.mlp = nn::MlpKind::clamped_swiglu;
  config.sink_logits = true;
  nn::RotaryScaling scaling = yarn();
  scaling.truncate = false;
  config.attention = {layer(five(), 1e4, scaling), layer(kAll, 1e4, scaling)};
  return config;
}

nn::TransformerConfig bert() {
  nn::TransformerConfig config = gpt2();
  config.mlp_dim = 24;
  config.norm_eps = 1e-12;
  config.norm_placement = nn::NormPlacement::after_sum;
  config.final_norm = false;
  config.mlp = nn::MlpKind::gelu;
  config.max_positions = 64;
  config.token_types = 2;
  config.embedding_norm = true;
  config.head = nn::HeadKind::transform;
  config.head_bias = true;
  return config;
}

nn::TransformerConfig roberta() {
  nn::TransformerConfig config = bert();
  config.norm_eps = 1e-5;
  config.max_positions = 62;
  config.token_types = 1;
  return config;
}

nn::TransformerConfig modernbert() {
  nn::TransformerConfig config = bert();
  config.layers = 3;
  config.norm_eps = 1e-5;
  config.norm_placement = nn::NormPlacement::before;
  config.final_norm = true;
  config.first_attn_norm = false;
  config.norm_bias = config.qkv_bias = config.out_bias = config.mlp_bias = false;
  config.head_dense_bias = false;
  config.mlp = nn::MlpKind::geglu;
  config.max_positions = config.token_types = 0;
  const AttentionMask near = AttentionMask::symmetric_window(2);
  config.attention = {layer(kAll, 1.6e5), layer(near, 1e4), layer(near, 1e4)};
  return config;
}

void check_close(const std::string& what, const Tensor& got, const Tensor& want) {
  CAPTURE(what);
  REQUIRE(got.defined());
  REQUIRE(got.shape() == want.shape());
  // A gradient that is zero by symmetry is rounding in both.
  if (largest_difference(got, want) <= 1e-7) return;
  CHECK(relative_error(got, want) <= kTolerance);
}

// Rows [0, length) of each sequence.
Tensor visible(const Tensor& logits, std::span<const int32_t> lengths, int64_t b) {
  return lengths.empty() ? logits.select(0, b)
                         : logits.select(0, b).narrow(0, 0, lengths[static_cast<size_t>(b)]);
}

template <class Model, class Forward, class Loss>
void check_training(const Reference& reference, Model& model, const Forward& forward,
                    const Loss& loss_of, const std::vector<int32_t>& lengths) {
  {
    const NoGradGuard no_grad;
    const Tensor got = forward(), want = reference("logits");
    for (int64_t b = 0; b < 2; ++b) {
      check_close("logits", visible(got, lengths, b), visible(want, lengths, b));
    }
  }
  optim::AdamW optimizer(model.parameters());  // the defaults are the reference's
  const std::vector<double> losses = reference("losses").template to_vector<double>();
  REQUIRE(losses.size() == 10);
  for (size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    optimizer.zero_grad();
    const Tensor loss = loss_of();
    loss.backward();
    CHECK(std::abs(loss.template item<double>() - losses[step]) <= kTolerance * losses[step]);
    if (step == 0) {
      for (const auto& [name, parameter] : model.named_parameters()) {
        check_close("grad." + name, parameter.grad(), reference("grad." + name));
      }
    }
    optimizer.step();
  }
}

void check_greedy(const Reference& reference, nn::Decoder& model) {
  const NoGradGuard no_grad;
  std::vector<nn::KeyValueCache> caches = model.new_caches();
  Tensor next = reference("tokens").narrow(0, 0, 1).narrow(1, 0, 6);
  const std::vector<double> want = reference("greedy").to_vector<double>();
  REQUIRE(want.size() == 20);
  std::vector<double> got;
  for (size_t i = 0; i < want.size(); ++i) {
    const Tensor logits = model(next, caches);
    next = logits.select(1, -1).argmax(-1, true);
    got.push_back(static_cast<double>(next.item<int64_t>()));
  }
  CHECK(got == want);
}

void check_decoder(const std::string& family, const nn::TransformerConfig& config, Device device) {
  CAPTURE(family);
  const Reference reference(family, device);
  nn::Decoder model(config);
  model.to(device);
  model.load_state_dict(reference.weights());
  check_greedy(reference, model);
  const Tensor tokens = reference("tokens"), targets = reference("targets");
  check_training(
      reference, model, [&] { return model(tokens); }, [&] { return model.loss(tokens, targets); },
      {});
}

void check_encoder(const std::string& family, const nn::TransformerConfig& config, Device device) {
  CAPTURE(family);
  const Reference reference(family, device);
  nn::Encoder model(config);
  model.to(device);
  model.load_state_dict(reference.weights());
  const Tensor tokens = reference("tokens"), targets = reference("targets");
  const Tensor lengths = reference("lengths");
  const AttentionMask mask = AttentionMask::key_lengths(lengths);
  const auto forward = [&] { return model(tokens, mask); };
  const auto loss = [&] {
    const Tensor logits = forward();
    return cross_entropy(logits.view({-1, logits.size(2)}), targets.view({-1}));
  };
  check_training(reference, model, forward, loss, lengths.to(kCPU).to_vector<int32_t>());
}

// Layers of 2017.
nn::TransformerConfig translator() {
  nn::TransformerConfig config = bert();
  config.norm_eps = 1e-5;
  config.final_norm = true;
  config.mlp = nn::MlpKind::relu;
  config.max_positions = config.token_types = 0;
  config.no_positions = true;
  config.embedding_norm = false;
  config.head = nn::HeadKind::linear;
  config.tie_weights = config.head_bias = false;
  return config;
}

void check_translator(Device device) {
  const Reference reference("translator", device);
  nn::Transformer model(translator(), translator());
  model.to(device);
  model.load_state_dict(reference.weights());
  const Tensor source = reference("source"), target = reference("target");
  const AttentionMask mask = AttentionMask::key_lengths(reference("lengths"));
  check_close("logits", model(source, target, mask), reference("logits"));
  const Tensor loss = model.loss(source, target, reference("targets"), mask);
  const double want = reference("loss").item<double>();
  CHECK(std::abs(loss.item<double>() - want) <= kTolerance * want);
  loss.backward();
  for (const auto& [name, parameter] : model.named_parameters()) {
    check_close("grad." + name, parameter.grad(), reference("grad." + name));
  }
  const NoGradGuard no_grad;
  nn::TransformerCache cache = model.new_cache(source, mask);
  for (int64_t i = 0; i < target.size(1); ++i) {
    check_close("logits by cache", model(target.narrow(1, i, 1), cache).select(1, 0),
                reference("logits").select(1, i));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("model parity: GPT-2 and GPT-Neo", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  check_decoder("gpt2", gpt2(), On::device);
  check_decoder("gpt_neo", gpt_neo(), On::device);
}

TEST_CASE_TEMPLATE("model parity: Llama, Mistral, Qwen 2 and 3, and Phi-3", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  check_decoder("llama", llama(), On::device);
  check_decoder("mistral", mistral(), On::device);
  check_decoder("qwen2", qwen2(), On::device);
  check_decoder("qwen3", qwen3(), On::device);
  check_decoder("phi3", phi3(), On::device);
}

TEST_CASE_TEMPLATE("model parity: Gemma 2 and 3", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  check_decoder("gemma2", gemma2(), On::device);
  check_decoder("gemma3", gemma3(), On::device);
}

TEST_CASE_TEMPLATE("model parity: OLMo 3 and gpt-oss with one expert", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  check_decoder("olmo3", olmo3(), On::device);
  check_decoder("gpt_oss", gpt_oss(), On::device);
}

TEST_CASE_TEMPLATE("model parity: ModernBERT, BERT and RoBERTa", On, Cpu, Cuda) {
  if (missing(On::device)) return;
  check_encoder("modernbert", modernbert(), On::device);
  check_encoder("bert", bert(), On::device);
  check_encoder("roberta", roberta(), On::device);
}

TEST_CASE_TEMPLATE("model parity: an encoder and a decoder", On, Cpu, Cuda) {
  if (!missing(On::device)) check_translator(On::device);
}
