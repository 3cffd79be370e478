#include "pretrained.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "../../core/error.h"
#include "../../tensor/factories.h"
#include "../../tensor/io/file_kind.h"
#include "../../tensor/io/replacement_file.h"
#include "../../tensor/tensor_impl.h"
#include "../layers/lora.h"
#include "../text/json_text.h"
#include "config_json.h"
#include "name_table.h"
#include "shards.h"

namespace sash::nn {
namespace {

namespace fs = std::filesystem;

// The tensors of a checkpoint, to be read one by one.
struct Source {
  StateDict outline{};  // of their names, shapes and dtypes; takes no memory
  std::map<std::string, std::function<Tensor()>> readers{};
  bool quantised = false;

  Source(const std::shared_ptr<const GgufFile>& gguf, const std::string& path) {
    if (!gguf) {
      for (const StoredTensor& stored : list_shards(path)) add(stored);
      return;
    }
    for (const GgufFile::Entry& entry : gguf->entries()) {
      const auto read = [gguf, name = entry.name] { return gguf->tensor(name, {.device = kCPU}); };
      const GgufFormat* const format = gguf_format(entry.format);
      if (!format) read();  // throws
      add({entry.name, entry.shape, format->dtype, read});
      quantised = quantised || format->decode;
    }
  }
  void add(const StoredTensor& stored) {
    const Tensor element = zeros({}, {.dtype = stored.dtype, .device = kCPU});
    outline.emplace_back(stored.name, element.expand(stored.shape));
    readers.emplace(stored.name, stored.read);
  }
  Tensor operator()(const std::string& name) const { return readers.at(name)(); }
};

constexpr const char* kGeneration = "generation_config.json";

// The files of a folder that do not depend on the weights: the tokenizer's, and options of
// generation.
constexpr const char* kBeside[] = {kGeneration,
                                   "tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "chat_template.jinja",
                                   "vocab.json",
                                   "merges.txt",
                                   "vocab.txt",
                                   "tokenizer.model"};

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

void copy_beside(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) return;
  const std::string bytes = text::read_text(kPretrained, from.string());
  ReplacementFile file(kPretrained, to.string());
  file.write(bytes.data(), bytes.size());
  file.commit();
}

// A config.json that says whether the head is tied.
std::string with_tie(const std::string& text, bool tied) {
  if (read_config_json(kPretrained, text).model.tie_weights == tied) return text;
  auto json = nlohmann::ordered_json::parse(text);
  json["tie_word_embeddings"] = tied;
  return json.dump(2) + "\n";
}

TransformerConfig undrawn(TransformerConfig config) {
  config.draw_weights = false;
  return config;
}

}  // namespace

Pretrained Pretrained::open(const std::string& path) try {
  Pretrained file;
  file.path_ = path;
  PretrainedConfig config;
  if (path.ends_with(".gguf")) {
    file.gguf_ = std::make_shared<const GgufFile>(path);
    config = read_config_gguf(kPretrained, *file.gguf_);
  } else {
    std::error_code error;
    if (!fs::is_directory(path, error)) file.path_ = fs::path(path).parent_path().string();
    file.config_text_ =
        text::read_text(kPretrained, (fs::path(file.path_) / "config.json").string());
    config = read_config_json(kPretrained, file.config_text_);
  }
  file.family_ = config.family;
  file.config_ = config.model;
  file.stop_tokens_ = config.stop_tokens;
  const fs::path generation = fs::path(file.path_) / kGeneration;
  if (!file.gguf_ && is_file(generation)) {
    const auto tokens =
        read_stop_tokens(kPretrained, text::read_text(kPretrained, generation.string()));
    if (!tokens.empty()) file.stop_tokens_ = tokens;
  }
  if (!file.gguf_ && file.config_.tie_weights) file.check_tied();
  return file;
} catch (Error& error) {
  name_file(error, path);
  throw;
}

void Pretrained::check_tied() try {
  const Source source(nullptr, path_);
  const NameTable table = names_of_family(kPretrained, family_, false);
  const std::string both = own_head(table, source.outline, std::cref(source));
  if (both.empty()) return;
  config_.tie_weights = false;
  warning_ = "Pretrained: " + both + ", to which tie_word_embeddings ties it; both are kept; in '" +
             path_ + "'";
  std::fprintf(stderr, "warning: %s\n", warning_.c_str());
} catch (const IoError&) {  // a configuration alone
}

DType Pretrained::dtype() const try {
  const Source source(gguf_, path_);
  std::map<DType, int64_t> elements;
  DType most = DType::float32;
  for (const auto& [name, tensor] : source.outline) {
    const DType own = tensor.dtype();
    if (is_floating(own) && (elements[own] += tensor.numel()) > elements[most]) most = own;
  }
  return source.quantised ? DType::float32 : most;
} catch (Error& error) {
  name_file(error, path_);
  throw;
}

text::Tokenizer Pretrained::tokenizer() const {
  if (gguf_) return text::Tokenizer::from_gguf(*gguf_);
  return text::Tokenizer::load((fs::path(path_) / "tokenizer.json").string());
}

template <class Model>
Model Pretrained::make(const TransformerConfig& config, const TensorOptions& options) const {
  const DType kind = options.dtype ? *options.dtype : dtype();
  if (!is_floating(kind)) throw DTypeError(kPretrained, "a floating dtype", name(kind));
  Model model(undrawn(config));
  const Device device = options.device ? *options.device : default_device();
  for (const Tensor& p : model.parameters()) {  // which `load` fills
    p.impl().storage = empty(p.shape(), {.dtype = kind, .device = device}).impl().storage;
    p.impl().dtype = kind;
  }
  load(model);
  return model;
}

Decoder Pretrained::decoder(const TransformerConfig& config, const TensorOptions& options) const {
  if (is_encoder()) throw ValueError(kPretrained, "a decoder", "an encoder, '" + family_ + "'");
  return make<Decoder>(config, options);
}

Encoder Pretrained::encoder(const TransformerConfig& config, const TensorOptions& options) const {
  if (!is_encoder()) throw ValueError(kPretrained, "an encoder", "a decoder, '" + family_ + "'");
  return make<Encoder>(config, options);
}

void Pretrained::load(TransformerStack& model) const try {
  const Source source(gguf_, path_);
  const NameTable table =
      gguf_ ? names_of_gguf(family_)
            : names_of_family(
                  kPretrained, family_,
                  std::any_of(source.outline.begin(), source.outline.end(),
                              [](const auto& item) { return item.first.ends_with(kDecoderBias); }));
  load_their_names(kPretrained, table, source.outline, std::cref(source), model.state_dict(),
                   model.config());
} catch (Error& error) {
  name_file(error, path_);
  throw;
}

StateDict Pretrained::state_dict(const TransformerStack& model) const {
  const NameTable table = gguf_
                              ? names_of_gguf(family_)
                              : names_of_family(kPretrained, family_, !model.config().tie_weights);
  StateDict theirs = to_their_names(kPretrained, table, merged_state_dict(model), model.config());
  if (family_ == "gpt_oss") {
    for (int64_t i = 0; i < model.config().layers; ++i) {
      const std::string router = "model.layers." + std::to_string(i) + ".mlp.router.";
      theirs.emplace_back(router + "weight", zeros({1, model.config().dim}));
      theirs.emplace_back(router + "bias", zeros({1}));
    }
  }
  return theirs;
}

void Pretrained::save(const TransformerStack& model, const std::string& folder,
                      int64_t max_shard_bytes) const {
  if (gguf_) throw NotImplemented(kPretrained, "sash does not write GGUF files");
  check_shard_bytes(max_shard_bytes);
  const StateDict tensors = state_dict(model);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError(kPretrained, "cannot make folder '" + folder + "': " + error.message());
  ReplacementFile config(kPretrained, (fs::path(folder) / "config.json").string());
  const std::string text = with_tie(config_text_, model.config().tie_weights);
  config.write(text.data(), text.size());
  save_shards(folder, tensors, max_shard_bytes);
  for (const char* name : kBeside) {
    const fs::path from = fs::path(path_) / name;
    if (is_file(from)) copy_beside(from, fs::path(folder) / name);
  }
  config.commit();  // the last, so that a failure leaves the old one beside the old weights
}

}  // namespace sash::nn
