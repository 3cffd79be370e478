#include "config_json.h"

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "../../core/error.h"
#include "../../core/quote.h"
#include "../text/json_text.h"
#include "name_table.h"

namespace sash::nn {
namespace {

using Json = nlohmann::json;

constexpr const char* kWindow = "sliding_attention";
constexpr const char* kFull = "full_attention";
constexpr int64_t kMaxSize = INT32_MAX;

class JsonReader {
 public:
  JsonReader(const char* op, const Json& json) : op_(op), json_(json) {}

  PretrainedConfig read() {
    const auto family = json_.at("model_type").get<std::string>();
    using Read = TransformerConfig (JsonReader::*)() const;
    static const std::map<std::string, Read> readers{
        {"gpt2", &JsonReader::gpt2},          {"gpt_neo", &JsonReader::gpt_neo},
        {"llama", &JsonReader::llama},        {"mistral", &JsonReader::mistral},
        {"qwen2", &JsonReader::qwen2},        {"qwen3", &JsonReader::qwen3},
        {"phi3", &JsonReader::phi3},          {"gemma2", &JsonReader::gemma2},
        {"gemma3_text", &JsonReader::gemma3}, {"olmo3", &JsonReader::olmo3},
        {"gpt_oss", &JsonReader::gpt_oss},    {"modernbert", &JsonReader::modernbert},
        {"bert", &JsonReader::bert},          {"roberta", &JsonReader::roberta}};
    const auto reader = readers.find(family);
    if (reader == readers.end()) {
      std::string known;
      for (const auto& [name, read] : readers) known += (known.empty() ? "" : ", ") + name;
      unsupported("model_type " + in_quotes(family) + ", but " + known);
    }
    return {family, (this->*reader->second)(), stop_tokens()};
  }

  // A number, or a list of them.
  std::vector<int64_t> stop_tokens() const {
    if (!has("eos_token_id")) return {};
    const Json& value = json_["eos_token_id"];
    std::vector<int64_t> tokens;
    for (const Json& token : value.is_array() ? value : Json::array({value})) {
      tokens.push_back(text::integer_of(op_, "eos_token_id", token.dump(), 0, kMaxSize));
    }
    return tokens;
  }

 private:
  [[noreturn]] void unsupported(const std::string& what) const {
    throw NotImplemented(op_, "sash has no " + what);
  }
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  template <class T>
  T get(const char* key) const {
    return json_.at(key).get<T>();
  }
  template <class T>
  T get(const char* key, const T& otherwise) const {
    return has(key) ? json_[key].get<T>() : otherwise;
  }
  int64_t integer(const Json& json, const char* key, int64_t least, int64_t most = kMaxSize) const {
    return text::integer_of(op_, key, json.at(key).dump(), least, most);
  }
  int64_t size(const char* key) const { return integer(json_, key, 1); }
  int64_t size(const char* key, int64_t otherwise, int64_t least = 0) const {
    return has(key) ? integer(json_, key, least) : otherwise;
  }
  int64_t layers(const char* key) const { return integer(json_, key, 1, kMaxLayers); }
  // `NotImplemented` unless the option has this value or is not there.
  template <class T>
  void only(const char* key, const T& value) const {
    if (has(key) && get<T>(key) != value) unsupported(std::string(key) + " " + json_[key].dump());
  }
  MlpKind activation(const char* key, const std::map<std::string, MlpKind>& known) const {
    const auto name = get<std::string>(key);
    const auto found = known.find(name);
    if (found == known.end()) unsupported(std::string(key) + " " + in_quotes(name));
    return found->second;
  }

  // ---- rotary positions -------------------------------------------------------------------------

  RotaryOptions rotary(const Json& parameters, double theta, int64_t head_dim) const {
    RotaryOptions options{.theta = parameters.value("rope_theta", theta)};
    const double part =
        parameters.value("partial_rotary_factor", get("partial_rotary_factor", 1.0));
    if (!(part > 0 && part <= 1)) {
      throw FormatError(op_, "partial_rotary_factor above 0, at most 1", to_text(part));
    }
    options.scaling = scaling(parameters);
    if (part == 1) return options;
    // Of these families, transformers applies it in Phi-3 alone; others cannot run with scaling.
    const auto family = get<std::string>("model_type");
    if (family == "phi3") {
      options.dim = static_cast<int64_t>(static_cast<double>(head_dim) * part);
    } else if (options.scaling.kind != RotaryScalingKind::none) {
      unsupported("partial_rotary_factor with scaled positions in " + in_quotes(family));
    }
    return options;
  }

  RotaryScaling scaling(const Json& parameters) const {
    static const std::map<std::string, RotaryScalingKind> known{
        {"default", RotaryScalingKind::none},        {"linear", RotaryScalingKind::linear},
        {"dynamic", RotaryScalingKind::dynamic_ntk}, {"yarn", RotaryScalingKind::yarn},
        {"llama3", RotaryScalingKind::llama3},       {"longrope", RotaryScalingKind::longrope},
        {"su", RotaryScalingKind::longrope}};
    const std::string type =
        parameters.value("rope_type", parameters.value("type", std::string("default")));
    const auto kind = known.find(type);
    if (kind == known.end()) unsupported("rope_type " + in_quotes(type));
    RotaryScaling result{.kind = kind->second};
    if (result.kind == RotaryScalingKind::none) return result;
    const int64_t context = size("max_position_embeddings", 0);
    const char* const original = "original_max_position_embeddings";
    result.original_context =
        parameters.contains(original) ? integer(parameters, original, 1) : size(original, context);
    const double longer =
        static_cast<double>(context) / static_cast<double>(result.original_context);
    const auto number = [&](const char* key) {
      const bool given = parameters.contains(key) && !parameters[key].is_null();
      return given ? std::optional(parameters[key].get<double>()) : std::nullopt;
    };
    result.factor = number("factor").value_or(longer);
    result.low_freq_factor = parameters.value("low_freq_factor", 1.0);
    result.high_freq_factor = parameters.value("high_freq_factor", 4.0);
    result.beta_fast = parameters.value("beta_fast", 32.0);
    result.beta_slow = parameters.value("beta_slow", 1.0);
    result.truncate = parameters.value("truncate", true);
    result.attention_factor = number("attention_factor");
    const double scale = number("mscale").value_or(0), all = number("mscale_all_dim").value_or(0);
    if (result.kind == RotaryScalingKind::yarn && !result.attention_factor && scale * all != 0) {
      const double growth = 0.1 * std::log(std::max(result.factor, 1.0));
      result.attention_factor = (scale * growth + 1) / (all * growth + 1);
    }
    result.short_factor = parameters.value("short_factor", std::vector<double>());
    result.long_factor = parameters.value("long_factor", std::vector<double>());
    return result;
  }

  // Rotary options of layers of a type. Newer files have rope_parameters, for each type if these
  // differ; older ones rope_theta and rope_scaling, and `theta` under other keys for some layers.
  RotaryOptions rotary_of(const char* type, double theta, bool scaled, int64_t head_dim) const {
    if (has("rope_parameters")) {
      const Json& all = json_["rope_parameters"];
      return rotary(all.contains(type) ? all[type] : all, theta, head_dim);
    }
    const bool scale = scaled && has("rope_scaling");
    return rotary(scale ? json_["rope_scaling"] : Json::object(), theta, head_dim);
  }

  // ---- layers -----------------------------------------------------------------------------------

  // Whether each layer has a window: by layer_types, or else by its number.
  std::vector<bool> windowed(int64_t layers, const std::function<bool(int64_t)>& by_number) const {
    std::vector<bool> result;
    if (!has("layer_types")) {
      for (int64_t i = 0; i < layers; ++i) result.push_back(by_number(i));
      return result;
    }
    for (const auto& type : get<std::vector<std::string>>("layer_types")) {
      if (type != kWindow && type != kFull) unsupported("layer type " + in_quotes(type));
      result.push_back(type == kWindow);
    }
    if (static_cast<int64_t>(result.size()) != layers) {
      throw FormatError(op_, std::to_string(layers) + " layer_types",
                        std::to_string(result.size()));
    }
    return result;
  }

  // With a default, the file need not say it.
  AttentionMask window(int64_t otherwise = 0) const {
    const char* const key = "sliding_window";
    return AttentionMask::causal_window(otherwise > 0 ? size(key, otherwise, 1) : size(key));
  }

  // The fields that Llama and those after it share; layers that all see everything.
  TransformerConfig common(double eps, bool tied) const {
    TransformerConfig config;
    config.vocab = size("vocab_size");
    config.dim = size("hidden_size");
    config.layers = layers("num_hidden_layers");
    config.heads = size("num_attention_heads");
    config.kv_heads = size("num_key_value_heads", 0);
    config.head_dim = size("head_dim", 0);
    config.mlp_dim = size("intermediate_size");
    config.norm_eps = get("rms_norm_eps", eps);
    config.tie_weights = get("tie_word_embeddings", tied);
    return config;
  }
  static int64_t head_dim(const TransformerConfig& config) {
    return config.head_dim > 0 ? config.head_dim : config.dim / config.heads;
  }
  void set_attention_bias(TransformerConfig& config) const {
    config.qkv_bias = config.out_bias = get("attention_bias", false);
  }
  MlpKind silu(const char* key = "hidden_act") const {
    return has(key) ? activation(key, {{"silu", MlpKind::swiglu}, {"swish", MlpKind::swiglu}})
                    : MlpKind::swiglu;
  }

  // Layers with and without a window, all with the same rotary options.
  void set_attention(TransformerConfig& config, const std::function<bool(int64_t)>& by_number,
                     double theta = 10000, int64_t default_window = 0) const {
    const RotaryOptions turn = rotary_of(kFull, get("rope_theta", theta), true, head_dim(config));
    const std::vector<bool> windows = windowed(config.layers, by_number);
    const bool any = std::find(windows.begin(), windows.end(), true) != windows.end();
    LayerAttention narrow{.rotary = turn};
    if (any) {
      narrow.mask = window(default_window);
      // One that differs is rare, and then it is listed by type.
      narrow.rotary = rotary_of(kWindow, get("rope_theta", theta), true, head_dim(config));
    }
    config.attention =
        shortest_period(windows, narrow, {.mask = AttentionMask::causal(), .rotary = turn});
  }

  // Layers of two kinds, `near` and `far`, whose rotary options differ.
  struct Kind {
    AttentionMask mask;
    double theta;
  };
  void set_attention_of(TransformerConfig& config, const Kind& near, const Kind& far,
                        bool scaled_far, const std::function<bool(int64_t)>& by_number) const {
    const int64_t dim = head_dim(config);
    config.attention =
        shortest_period(windowed(config.layers, by_number),
                        {.mask = near.mask, .rotary = rotary_of(kWindow, near.theta, false, dim)},
                        {.mask = far.mask, .rotary = rotary_of(kFull, far.theta, scaled_far, dim)});
  }

  // ---- families ---------------------------------------------------------------------------------

  TransformerConfig llama() const {
    TransformerConfig config = common(1e-6, false);
    set_attention_bias(config);
    config.mlp_bias = get("mlp_bias", false);
    config.mlp = silu();
    set_attention(config, [](int64_t) { return false; });
    return config;
  }

  TransformerConfig mistral() const {
    TransformerConfig config = common(1e-6, false);
    config.mlp = silu();
    const bool full = json_.contains("sliding_window") && !has("sliding_window");  // null
    set_attention(
        config, [full](int64_t) { return !full; }, 10000, 4096);
    return config;
  }

  TransformerConfig qwen2() const {
    TransformerConfig config = common(1e-6, false);
    config.qkv_bias = true;
    set_qwen_layers(config);
    return config;
  }

  TransformerConfig qwen3() const {
    TransformerConfig config = common(1e-6, false);
    if (config.head_dim == 0) config.head_dim = 128;
    config.qk_norm = QKNorm::per_head;
    set_attention_bias(config);
    set_qwen_layers(config);
    return config;
  }

  void set_qwen_layers(TransformerConfig& config) const {
    config.mlp = silu();
    const bool windows = get("use_sliding_window", false) && has("sliding_window");
    const int64_t first = size("max_window_layers", 28);
    set_attention(config, [=](int64_t i) { return windows && i >= first; });
  }

  TransformerConfig phi3() const {
    TransformerConfig config = common(1e-5, false);
    config.mlp = silu();
    const bool windows = has("sliding_window");
    set_attention(config, [windows](int64_t) { return windows; });
    return config;
  }

  TransformerConfig gemma(double scale_by) const {
    TransformerConfig config = common(1e-6, true);
    if (config.head_dim == 0) config.head_dim = 256;
    config.norm = NormKind::rms_norm_unit_offset;
    config.norm_placement = NormPlacement::around;
    config.mlp = activation("hidden_activation", {{"gelu_pytorch_tanh", MlpKind::geglu_tanh}});
    config.scale = 1 / std::sqrt(get("query_pre_attn_scalar", scale_by));
    config.embedding_scale = std::sqrt(static_cast<double>(config.dim));
    set_attention_bias(config);
    config.logit_softcap = get("final_logit_softcapping", 0.0);
    return config;
  }

  TransformerConfig gemma2() const {
    TransformerConfig config = gemma(256);
    config.attn_softcap = get("attn_logit_softcapping", 0.0);  // transformers applies it here alone
    set_attention(config, [](int64_t i) { return i % 2 == 0; });
    return config;
  }

  TransformerConfig gemma3() const {
    TransformerConfig config = gemma(256);
    only("use_bidirectional_attention", false);
    config.qk_norm = QKNorm::per_head;
    const int64_t period = size("sliding_window_pattern", 6, 1);
    set_attention_of(config, {window(), get("rope_local_base_freq", 10000.0)},
                     {AttentionMask::causal(), get("rope_theta", 1e6)}, true,
                     [=](int64_t i) { return (i + 1) % period != 0; });
    return config;
  }

  TransformerConfig olmo3() const {
    TransformerConfig config = common(1e-5, false);
    config.norm_placement = NormPlacement::after;
    config.qk_norm = QKNorm::all_heads;
    set_attention_bias(config);
    config.mlp = silu();
    const double theta = get("rope_theta", 500000.0);
    set_attention_of(config, {window(), theta}, {AttentionMask::causal(), theta}, true,
                     [](int64_t i) { return (i + 1) % 4 != 0; });
    return config;
  }

  TransformerConfig gpt_oss() const {
    TransformerConfig config = common(1e-5, false);
    if (size("num_local_experts", 128) != 1) unsupported("gpt_oss of several experts");
    only("swiglu_limit", 7.0);
    if (config.head_dim == 0) config.head_dim = 64;
    config.mlp = MlpKind::clamped_swiglu;
    config.sink_logits = true;
    config.qkv_bias = config.out_bias = get("attention_bias", true);
    config.mlp_bias = true;
    set_attention(
        config, [](int64_t i) { return i % 2 == 0; }, 150000);
    return config;
  }

  void set_layer_norm(TransformerConfig& config, const char* key, double eps) const {
    config.norm = NormKind::layer_norm;
    config.norm_eps = get(key, eps);
    config.norm_bias = config.qkv_bias = config.out_bias = config.mlp_bias = true;
  }

  TransformerConfig gpt2() const {
    TransformerConfig config;
    config.vocab = size("vocab_size");
    config.dim = size("n_embd");
    config.layers = layers("n_layer");
    config.heads = size("n_head");
    config.mlp_dim = size("n_inner", 0);
    config.max_positions = size("n_positions");
    only("scale_attn_weights", true);
    only("scale_attn_by_inverse_layer_idx", false);
    only("add_cross_attention", false);
    config.mlp = activation("activation_function", kGptActivations);
    set_layer_norm(config, "layer_norm_epsilon", 1e-5);
    config.tie_weights = get("tie_word_embeddings", true);
    return config;
  }

  // [[["global", "local"], 12]] is twelve times these two.
  std::vector<bool> local_layers(int64_t layers) const {
    const auto wanted = static_cast<size_t>(layers);
    std::vector<bool> result;
    for (const Json& part : json_.at("attention_types")) {
      const int64_t times =
          text::integer_of(op_, "attention_types", part.at(1).dump(), 0, kMaxLayers);
      for (int64_t i = 0; i < times && result.size() <= wanted; ++i) {
        for (const Json& type : part.at(0)) result.push_back(type.get<std::string>() == "local");
      }
    }
    if (result.size() != wanted) {
      throw FormatError(op_, "attention_types for " + std::to_string(layers) + " layers",
                        result.size() > wanted ? "more" : std::to_string(result.size()));
    }
    return result;
  }

  TransformerConfig gpt_neo() const {
    TransformerConfig config;
    config.vocab = size("vocab_size");
    config.dim = size("hidden_size");
    config.layers = layers("num_layers");
    config.heads = size("num_heads");
    config.mlp_dim = size("intermediate_size", 0);
    config.max_positions = size("max_position_embeddings");
    config.mlp = activation("activation_function", kGptActivations);
    set_layer_norm(config, "layer_norm_epsilon", 1e-5);
    config.qkv_bias = false;
    config.scale = 1;
    config.tie_weights = get("tie_word_embeddings", true);
    const LayerAttention narrow{.mask = AttentionMask::causal_window(size("window_size", 256))};
    config.attention =
        shortest_period(local_layers(config.layers), narrow, {.mask = AttentionMask::causal()});
    return config;
  }

  // Of masked language models; others have none here.
  void set_head(TransformerConfig& config, const char* architecture) const {
    const auto names = get("architectures", std::vector<std::string>());
    const bool masked_lm = std::find(names.begin(), names.end(), architecture) != names.end();
    config.head = masked_lm ? HeadKind::transform : HeadKind::none;
    config.head_bias = masked_lm;
    config.tie_weights = masked_lm && get("tie_word_embeddings", true);
  }

  TransformerConfig modernbert() const {
    TransformerConfig config = common(1e-5, true);
    set_layer_norm(config, "norm_eps", 1e-5);
    config.norm_bias = get("norm_bias", false);
    config.qkv_bias = config.out_bias = get("attention_bias", false);
    config.mlp_bias = get("mlp_bias", false);
    config.mlp = activation("hidden_activation", {{"gelu", MlpKind::geglu}});
    config.embedding_norm = true;
    config.first_attn_norm = false;
    set_head(config, "ModernBertForMaskedLM");
    only("classifier_activation", std::string("gelu"));
    config.head_bias = config.head_bias && get("decoder_bias", true);
    config.head_dense_bias = get("classifier_bias", false);
    const int64_t period = size("global_attn_every_n_layers", 3, 1);
    const int64_t radius = size("local_attention", 128) / 2;
    set_attention_of(config,
                     {AttentionMask::symmetric_window(radius), get("local_rope_theta", 10000.0)},
                     {AttentionMask(), get("global_rope_theta", 160000.0)}, false,
                     [=](int64_t i) { return i % period != 0; });
    return config;
  }

  TransformerConfig bert_like(const char* architecture) const {
    TransformerConfig config = common(1e-12, true);
    set_layer_norm(config, "layer_norm_eps", 1e-12);
    only("position_embedding_type", std::string("absolute"));
    only("is_decoder", false);
    config.norm_placement = NormPlacement::after_sum;
    config.mlp = activation(
        "hidden_act",
        {{"gelu", MlpKind::gelu}, {"gelu_new", MlpKind::gelu_tanh}, {"relu", MlpKind::relu}});
    config.max_positions = size("max_position_embeddings");
    config.token_types = integer(json_, "type_vocab_size", 0);
    config.embedding_norm = true;
    config.final_norm = false;
    set_head(config, architecture);
    return config;
  }

  TransformerConfig bert() const { return bert_like("BertForMaskedLM"); }

  TransformerConfig roberta() const {
    TransformerConfig config = bert_like("RobertaForMaskedLM");
    if (config.head == HeadKind::transform) only("hidden_act", std::string("gelu"));
    // Positions start behind the padding's, number 1.
    only("pad_token_id", 1);
    config.max_positions = integer(json_, "max_position_embeddings", 3) - kRobertaPositions;
    return config;
  }

  inline static const std::map<std::string, MlpKind> kGptActivations{
      {"gelu_new", MlpKind::gelu_tanh},
      {"gelu_pytorch_tanh", MlpKind::gelu_tanh},
      {"gelu", MlpKind::gelu},
      {"relu", MlpKind::relu}};

  const char* op_;
  const Json& json_;
};

}  // namespace

PretrainedConfig read_config_json(const char* op, const std::string& text) try {
  return JsonReader(op, Json::parse(text::checked_depth(op, text))).read();
} catch (const Json::exception& error) {
  throw FormatError(op, "a valid config.json of the family", excerpt(error.what(), 200));
}

std::vector<int64_t> read_stop_tokens(const char* op, const std::string& text) try {
  return JsonReader(op, Json::parse(text::checked_depth(op, text))).stop_tokens();
} catch (const Json::exception& error) {
  throw FormatError(op, "a valid generation_config.json", excerpt(error.what(), 200));
}

}  // namespace sash::nn
