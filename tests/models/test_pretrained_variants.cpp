#include <doctest/doctest.h>
#include <sash/nn/layers/lora.h>
#include <sash/nn/pretrained/config_json.h>
#include <sash/nn/pretrained/pretrained.h>
#include <sash/ops/elementwise/gelu.h>
#include <sash/ops/elementwise/unary.h>
#include <sash/tensor/autograd/grad_mode.h>
#include <sash/tensor/factories.h>
#include <sash/tensor/io/safetensors.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "../support/expect_error.h"
#include "../support/temporary_folder.h"

/// Checkpoints of transformers with other options than those in parity/checkpoints.
using namespace sash;
using namespace sash::testing;
using nn::Pretrained;

namespace {

const std::string kFolder = SASH_TEST_PARITY "/checkpoints/";

/// A copy of a checkpoint with more in its config.json, `"key":value`, and more tensors.
class Variant {
 public:
  Variant(const std::string& name, const std::string& config, const StateDict& more = {}) {
    std::filesystem::copy(kFolder + name, path());
    std::ifstream in(path() + "/config.json");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    text.replace(text.rfind('}'), 1, "," + config + "}");  // the last of two equal keys counts
    std::ofstream(path() + "/config.json") << text;
    StateDict tensors = nn::load_shards(path());
    tensors.insert(tensors.end(), more.begin(), more.end());
    nn::save_shards(path(), tensors, 1 << 20);
  }
  std::string path() const { return folder_.file("x"); }
  Pretrained open() const { return Pretrained::open(path()); }

 private:
  TemporaryFolder folder_;
};

Tensor of_checkpoint(const std::string& name, const std::string& tensor) {
  return find(nn::load_shards(kFolder + name), tensor)->clone();
}

Tensor expected(const std::string& name, const std::string& tensor) {
  return *find(load_safetensors(kFolder + name + ".safetensors", kCPU).tensors, tensor);
}

double largest_error(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

const std::string kUntied = R"("tie_word_embeddings":false)";

}  // namespace

TEST_CASE("pretrained: heads of GPT that are not tied are loaded and saved") {
  const NoGradGuard no_grad;
  for (const std::string name : {"gpt2", "gpt_neo"}) {
    CAPTURE(name);
    const Tensor twice = of_checkpoint(name, "transformer.wte.weight") * 2;
    const Variant variant(name, kUntied, {{"lm_head.weight", twice}});
    const Pretrained file = variant.open();
    nn::Decoder model = file.decoder();
    const Tensor want = expected(name, "logits") * 2;
    CHECK(largest_error(model(expected(name, "tokens")), want) < 2e-5);
    const StateDict saved = file.state_dict(model);
    const Tensor* const head = find(saved, "lm_head.weight");
    REQUIRE(head);
    CHECK(head->to_vector<float>() == twice.to_vector<float>());
    const Variant headless(name, kUntied);
    expect_error<ValueError>("Pretrained: missing lm_head.weight; in '" + headless.path() + "'",
                             [&] { headless.open().decoder(); });
  }
}

TEST_CASE("pretrained: tensors of a model that the family's files do not have are named") {
  const auto with = [](const std::string& name, auto&& change) {
    const Pretrained file = Pretrained::open(kFolder + name);
    nn::TransformerConfig config = file.config();
    change(config);
    return thrown_by([&] { file.decoder(config); });
  };
  const auto error = [](const std::string& name, const std::string& tensors) {
    return "ValueError: Pretrained: expected a name for every tensor in files of the family, "
           "got none for " +
           tensors + "; in '" + kFolder + name + "'";
  };
  using Config = nn::TransformerConfig;
  CHECK(with("llama", [](Config& c) { c.max_positions = 64; }) ==
        error("llama", "position_embedding.weight"));
  CHECK(with("llama", [](Config& c) { c.head = nn::HeadKind::transform; }) ==
        error("llama", "head_dense.weight, head_dense.bias, head_norm.weight"));
  CHECK(with("llama", [](Config& c) { c.qk_norm = nn::QKNorm::per_head; }) ==
        error("llama",
              "layers.0.self_attn.q_norm.weight, layers.0.self_attn.k_norm.weight, "
              "layers.1.self_attn.q_norm.weight, layers.1.self_attn.k_norm.weight"));
  // Nor are they lost when a model is saved.
  const Pretrained llama = Pretrained::open(kFolder + "llama");
  Config longer = llama.config();
  longer.max_positions = 64;
  const nn::Decoder placed(longer);
  CHECK(thrown_by([&] { llama.state_dict(placed); }) ==
        "ValueError: Pretrained: expected a name for every tensor in files of the family, "
        "got none for position_embedding.weight");
  const std::string cross = with("llama", [](Config& c) { c.cross_attention = true; });
  CHECK(cross.find("layers.0.cross_attn.q_proj.weight") != cross.npos);
  CHECK(cross.find("layers.1.cross_attn.o_proj.weight") != cross.npos);
  // GPT-2's files have the rows of up, not those of the gate above it.
  const auto gated = [](Config& c) { c.mlp = nn::MlpKind::swiglu; };
  CHECK(with("gpt2", gated) ==
        error("gpt2",
              "layers.0.mlp.gate_up_proj.weight, layers.0.mlp.gate_up_proj.bias, "
              "layers.1.mlp.gate_up_proj.weight, layers.1.mlp.gate_up_proj.bias"));
}

TEST_CASE("pretrained: weights load below adapters, which files do not have") {
  const NoGradGuard no_grad;
  const Pretrained file = Pretrained::open(kFolder + "qwen3");
  nn::TransformerConfig config = file.config();
  config.packed = false;
  nn::Decoder model(config);
  nn::add_lora(model, "q_proj|v_proj", {.rank = 2});
  file.load(model);
  CHECK(largest_error(model(expected("qwen3", "tokens")), expected("qwen3", "logits")) < 2e-5);
}

TEST_CASE("pretrained: BERT's head has the activation of its layers") {
  const NoGradGuard no_grad;
  const Tensor tokens = expected("bert", "tokens");
  const auto error = [&](const std::string& activation, auto&& function) {
    const Variant variant("bert", R"("hidden_act":")" + activation + '"');
    nn::Encoder model = variant.open().encoder();
    const Tensor x = function((*model.head_dense)(model.hidden(tokens)));
    return largest_error(model(tokens), (*model.head)((*model.head_norm)(x)));
  };
  CHECK(error("relu", [](const Tensor& x) { return relu(x); }) < 1e-6);
  CHECK(error("gelu_new", [](const Tensor& x) { return gelu(x, GeluApproximation::tanh); }) < 1e-6);
  CHECK(error("gelu", [](const Tensor& x) { return gelu(x); }) < 1e-6);
}

TEST_CASE("pretrained: BERT's head has its decoder's bias where there is one") {
  const NoGradGuard no_grad;
  const std::string bias = "cls.predictions.decoder.bias";
  const Tensor tokens = expected("bert", "tokens"), logits = expected("bert", "logits");
  const Tensor table = of_checkpoint("bert", "bert.embeddings.word_embeddings.weight");
  const std::pair<std::string, Tensor> weight{"cls.predictions.decoder.weight", table};
  const Tensor more = of_checkpoint("bert", "cls.predictions.bias") + 1;
  const auto result = [&](const Variant& variant) { return variant.open().encoder()(tokens); };

  const Variant both("bert", kUntied, {weight, {bias, more}});
  CHECK(largest_error(result(both), logits + 1) < 2e-5);
  CHECK(largest_error(result(Variant("bert", kUntied, {weight})), logits) < 2e-5);
  const std::string tied = R"("tie_word_embeddings":true)";
  CHECK(largest_error(result(Variant("bert", tied, {{bias, more}})), logits + 1) < 2e-5);

  const StateDict saved = both.open().state_dict(both.open().encoder());
  REQUIRE(find(saved, bias));
  CHECK(find(saved, bias)->to_vector<float>() == more.to_vector<float>());
}

TEST_CASE("pretrained: options that a config.json leaves out, or that have no effect") {
  const auto read = [](const std::string& family, const std::string& more) {
    return nn::read_config_json(
               "test",
               R"({"model_type":")" + family +
                   R"(","vocab_size":9,"hidden_size":16,"num_hidden_layers":2,)"
                   R"("num_attention_heads":2,"intermediate_size":8,"head_dim":8,)"
                   R"("hidden_activation":"gelu_pytorch_tanh","max_position_embeddings":64)" +
                   more + "}")
        .model;
  };
  const auto mask = [&](const std::string& more) {
    return read("mistral", more).attention[0].mask.to_string();
  };
  CHECK(mask("") == AttentionMask::causal_window(4096).to_string());
  CHECK(mask(R"(,"sliding_window":null)") == "causal");
  CHECK(mask(R"(,"sliding_window":7)") == AttentionMask::causal_window(7).to_string());

  // transformers reads the first of Gemma 3's, and does not apply it.
  const std::string caps =
      R"(,"sliding_window":4,"attn_logit_softcapping":1.5,"final_logit_softcapping":2.0)";
  CHECK(read("gemma3_text", caps).attn_softcap == 0);
  CHECK(read("gemma3_text", caps).logit_softcap == 2);
  CHECK(read("gemma2", caps).attn_softcap == 1.5);

  const std::string half = R"(,"partial_rotary_factor":0.5)";
  CHECK(read("llama", half).attention[0].rotary->dim == nn::RotaryOptions().dim);
  CHECK(read("phi3", half).attention[0].rotary->dim == 4);
  const std::string scaled =
      R"(,"rope_scaling":{"rope_type":"linear","factor":2.0,"partial_rotary_factor":0.5})";
  CHECK(thrown_by([&] { read("llama", scaled); }) ==
        "NotImplemented: test: sash has no partial_rotary_factor with scaled positions in 'llama'");
  CHECK(read("phi3", scaled).attention[0].rotary->dim == 4);
}

TEST_CASE("pretrained: the factors of YaRN") {
  const auto scaling = [](const std::string& parameters) {
    return nn::read_config_json(
               "test",
               R"({"model_type":"qwen2","vocab_size":9,"hidden_size":8,"num_hidden_layers":1,)"
               R"("num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":64,)"
               R"("rope_scaling":{"rope_type":"yarn","original_max_position_embeddings":16,)" +
                   parameters + "}}")
        .model.attention[0]
        .rotary->scaling;
  };
  CHECK(scaling(R"("factor":null)").factor == 4);
  CHECK(scaling(R"("factor":8)").factor == 8);
  CHECK(!scaling(R"("factor":8,"mscale":0.7)").attention_factor);
  CHECK(!scaling(R"("factor":8,"mscale":0.7,"mscale_all_dim":0)").attention_factor);
  CHECK(!scaling(R"("factor":8,"attention_factor":null)").attention_factor);
  CHECK(scaling(R"("factor":8,"mscale":1,"mscale_all_dim":1)").attention_factor == 1);
  CHECK(scaling(R"("factor":1,"mscale":3,"mscale_all_dim":1)").attention_factor == 1);
  const std::string both = R"("factor":null,"mscale":0.7,"mscale_all_dim":0.2)";
  CHECK(*scaling(both).attention_factor ==
        doctest::Approx((0.07 * std::log(4.0) + 1) / (0.02 * std::log(4.0) + 1)).epsilon(1e-12));
  CHECK(scaling(both + R"(,"attention_factor":1.5)").attention_factor == 1.5);
}

TEST_CASE("pretrained: RoBERTa whose positions or head are not the usual") {
  const auto read = [](const std::string& more, const std::string& act = "gelu") {
    return nn::read_config_json(
        "test",
        R"({"hidden_act":")" + act +
            R"(","model_type":"roberta","vocab_size":9,"hidden_size":8,"num_hidden_layers":1,)"
            R"("num_attention_heads":2,"intermediate_size":8,"type_vocab_size":1)" +
            more + "}");
  };
  CHECK(read(R"(,"max_position_embeddings":514)").model.max_positions == 512);
  CHECK(read(R"(,"max_position_embeddings":3)", "relu").model.mlp == nn::MlpKind::relu);
  CHECK(thrown_by([&] { read(R"(,"max_position_embeddings":514,"pad_token_id":0)"); }) ==
        "NotImplemented: test: sash has no pad_token_id 0");
  CHECK(thrown_by([&] { read(R"(,"max_position_embeddings":2)"); }) ==
        "FormatError: test: expected an integer max_position_embeddings from 3 to 2147483647, got "
        "2");
  CHECK(thrown_by([&] {
          read(R"(,"max_position_embeddings":9,"architectures":["RobertaForMaskedLM"])", "relu");
        }) == "NotImplemented: test: sash has no hidden_act \"relu\"");
}
