#include <algorithm>
#include <cmath>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "../../tensor/io/gguf.h"
#include "../text/json_text.h"
#include "config_json.h"

namespace sash::nn {
namespace {

class GgufReader {
 public:
  GgufReader(const char* op, const GgufFile& file)
      : op_(op), file_(file), family_(file.get<std::string>("general.architecture")) {}

  PretrainedConfig read() const {
    TransformerConfig config = common();
    if (family_ == "gpt2") {
      set_gpt2(config);
    } else if (family_ == "gemma2" || family_ == "gemma3") {
      set_gemma(config);
    } else if (family_ == "llama" || family_ == "qwen2" || family_ == "qwen3") {
      if (family_ == "qwen3") config.qk_norm = QKNorm::per_head;
      if (size("expert_count", 0) > 0) unsupported("several experts");
      config.attention = {{.mask = AttentionMask::causal(), .rotary = rotary()}};
    } else {
      unsupported("GGUF architecture " + in_quotes(family_) +
                  ", but gpt2, llama, qwen2, qwen3, gemma2, gemma3");
    }
    const char* const stop = "tokenizer.ggml.eos_token_id";
    PretrainedConfig result{family_, config};
    if (file_.has(stop)) result.stop_tokens = {integer(stop, 0)};
    return result;
  }

 private:
  [[noreturn]] void unsupported(const std::string& what) const {
    throw NotImplemented(op_, "sash has no " + what);
  }
  template <class T>
  T get(const std::string& key) const {
    return file_.get<T>(family_ + "." + key);
  }
  template <class T>
  T get(const std::string& key, const T& otherwise) const {
    return file_.get<T>(family_ + "." + key, otherwise);
  }
  int64_t integer(const std::string& key, int64_t least, int64_t most = INT32_MAX) const {
    return text::integer_of(op_, key, std::to_string(file_.get<int64_t>(key)), least, most);
  }
  int64_t size(const std::string& key) const { return integer(family_ + "." + key, 1); }
  int64_t size(const std::string& key, int64_t otherwise) const {
    const std::string name = family_ + "." + key;
    return file_.has(name) ? integer(name, 0) : otherwise;
  }
  bool has_tensor(const std::string& name) const {
    const auto& all = file_.entries();
    return std::any_of(all.begin(), all.end(), [&](const auto& e) { return e.name == name; });
  }
  int64_t vocab() const {
    for (const GgufFile::Entry& entry : file_.entries()) {
      if (entry.name == "token_embd.weight" && entry.shape.rank() == 2) return entry.shape[0];
    }
    return size("vocab_size");
  }

  TransformerConfig common() const {
    TransformerConfig config;
    config.vocab = vocab();
    config.dim = size("embedding_length");
    config.layers = integer(family_ + ".block_count", 1, kMaxLayers);
    config.heads = size("attention.head_count");
    config.kv_heads = size("attention.head_count_kv", 0);
    config.head_dim = size("attention.key_length", 0);
    if (size("attention.value_length", config.head_dim) != config.head_dim) {
      unsupported("heads of values that are not as wide as those of keys");
    }
    config.mlp_dim = size("feed_forward_length");
    config.norm_eps = get("attention.layer_norm_rms_epsilon", 1e-6);
    config.tie_weights = !has_tensor("output.weight");
    config.qkv_bias = has_tensor("blk.0.attn_q.bias") || has_tensor("blk.0.attn_qkv.bias");
    config.out_bias = has_tensor("blk.0.attn_output.bias");
    config.mlp_bias = has_tensor("blk.0.ffn_down.bias");
    return config;
  }

  RotaryOptions rotary(double theta = 10000) const {
    RotaryOptions options{.theta = get("rope.freq_base", theta),
                          .dim = size("rope.dimension_count", 0)};
    RotaryScaling& scaling = options.scaling;
    const std::string type = get<std::string>("rope.scaling.type", "none");
    scaling.factor = get("rope.scaling.factor", 1.0);
    scaling.original_context =
        size("rope.scaling.original_context_length", size("context_length", 0));
    if (has_tensor("rope_freqs.weight")) {
      // Llama 3's factors, written out: those of longrope are applied in the same way.
      scaling.kind = RotaryScalingKind::longrope;
      scaling.attention_factor = 1.0;
      scaling.short_factor = scaling.long_factor =
          file_.tensor("rope_freqs.weight", {.device = kCPU}).to_vector<double>();
    } else if (type == "linear") {
      scaling.kind = RotaryScalingKind::linear;
    } else if (type == "yarn") {
      scaling.kind = RotaryScalingKind::yarn;
    } else if (type != "none") {
      unsupported("rope.scaling.type " + in_quotes(type));
    }
    return options;
  }

  void set_gpt2(TransformerConfig& config) const {
    config.norm = NormKind::layer_norm;
    config.norm_eps = get("attention.layer_norm_epsilon", 1e-5);
    config.norm_bias = true;
    config.mlp = MlpKind::gelu_tanh;
    config.max_positions = size("context_length");
    config.attention = {{.mask = AttentionMask::causal()}};
  }

  // The files do not say which layers have windows, nor the scale of the largest models.
  void set_gemma(TransformerConfig& config) const {
    const bool third = family_ == "gemma3";
    config.norm = NormKind::rms_norm_unit_offset;
    config.norm_placement = NormPlacement::around;
    config.mlp = MlpKind::geglu_tanh;
    config.embedding_scale = std::sqrt(static_cast<double>(config.dim));
    config.attn_softcap = get("attn_logit_softcapping", 0.0);
    config.logit_softcap = get("final_logit_softcapping", 0.0);
    const int64_t largest = third ? 62 : 46;  // layers of the 27B models
    if (config.layers == largest) {
      config.scale = 1 / std::sqrt(static_cast<double>(config.dim / config.heads));
    }
    config.qk_norm = third ? QKNorm::per_head : QKNorm::none;
    const int64_t period = third ? 6 : 2;
    std::vector<bool> windowed;
    for (int64_t i = 0; i < config.layers; ++i) windowed.push_back((i + 1) % period != 0);
    LayerAttention full{.mask = AttentionMask::causal(), .rotary = rotary(third ? 1e6 : 1e4)};
    LayerAttention window{.mask = AttentionMask::causal_window(size("attention.sliding_window")),
                          .rotary = full.rotary};
    if (third) {
      window.rotary->theta = get("rope.freq_base_swa", 10000.0);
      window.rotary->scaling = {};
    }
    config.attention = shortest_period(windowed, window, full);
  }

  const char* op_;
  const GgufFile& file_;
  std::string family_;
};

}  // namespace

PretrainedConfig read_config_gguf(const char* op, const GgufFile& file) {
  return GgufReader(op, file).read();
}

}  // namespace sash::nn
