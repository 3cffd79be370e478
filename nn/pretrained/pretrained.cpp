#include "pretrained.h"

#include <filesystem>
#include <map>

#include "../../core/error.h"
#include "../../tensor/factories.h"
#include "../../tensor/io/file_kind.h"
#include "../../tensor/io/replacement_file.h"
#include "../init.h"
#include "../layers/lora.h"
#include "../text/json_text.h"
#include "config_json.h"
#include "name_table.h"
#include "shards.h"

namespace sash::nn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOp = "Pretrained";

// A tensor of this shape and dtype that takes no memory, since the file's are read one by one.
Tensor outline(const Shape& shape, DType dtype) {
  return zeros({}, {.dtype = dtype, .device = kCPU}).expand(shape);
}

StateDict outline(const GgufFile& file) {
  StateDict dict;
  for (const GgufFile::Entry& entry : file.entries()) {
    const GgufFormat* const format = gguf_format(entry.format);
    if (!format) file.tensor(entry.name);  // throws
    dict.emplace_back(entry.name, outline(entry.shape, format->dtype));
  }
  return dict;
}

}  // namespace

Pretrained Pretrained::open(const std::string& path) try {
  Pretrained file;
  file.path_ = path;
  PretrainedConfig config;
  if (path.ends_with(".gguf")) {
    file.gguf_ = std::make_shared<const GgufFile>(path);
    config = read_config_gguf(kOp, *file.gguf_);
  } else {
    std::error_code error;
    if (!fs::is_directory(path, error)) file.path_ = fs::path(path).parent_path().string();
    file.config_text_ = text::read_text(kOp, (fs::path(file.path_) / "config.json").string());
    config = read_config_json(kOp, file.config_text_);
  }
  file.family_ = config.family;
  file.config_ = config.model;
  file.stop_tokens_ = config.stop_tokens;
  return file;
} catch (Error& error) {
  name_file(error, path);
  throw;
}

text::Tokenizer Pretrained::tokenizer() const {
  if (gguf_) return text::Tokenizer::from_gguf(*gguf_);
  return text::Tokenizer::load((fs::path(path_) / "tokenizer.json").string());
}

Decoder Pretrained::decoder(const DecoderConfig& config) const {
  if (is_encoder()) throw ValueError(kOp, "a decoder", "an encoder, '" + family_ + "'");
  const init::SkipRandom skip;
  Decoder model(config);
  load(model);
  return model;
}

Encoder Pretrained::encoder(const DecoderConfig& config) const {
  if (!is_encoder()) throw ValueError(kOp, "an encoder", "a decoder, '" + family_ + "'");
  const init::SkipRandom skip;
  Encoder model(config);
  load(model);
  return model;
}

void Pretrained::load(TransformerStack& model) const try {
  const StateDict ours = model.state_dict();
  if (gguf_) {
    const auto read = [&](const std::string& name) {
      return gguf_->tensor(name, {.device = kCPU});
    };
    load_their_names(kOp, names_of_gguf(kOp, family_), outline(*gguf_), read, ours, model.config());
  } else {
    StateDict theirs;
    std::map<std::string, std::function<Tensor()>> readers;
    for (const StoredTensor& stored : list_shards(path_)) {
      theirs.emplace_back(stored.name, outline(stored.shape, stored.dtype));
      readers.emplace(stored.name, stored.read);
    }
    const auto read = [&](const std::string& name) { return readers.at(name)(); };
    const bool decoder_bias = !model.config().tie_weights && find(theirs, kDecoderBias);
    const NameTable table = names_of_family(kOp, family_, decoder_bias);
    load_their_names(kOp, table, theirs, read, ours, model.config());
  }
} catch (Error& error) {
  name_file(error, path_);
  throw;
}

StateDict Pretrained::state_dict(const TransformerStack& model) const {
  const NameTable table = gguf_ ? names_of_gguf(kOp, family_)
                                : names_of_family(kOp, family_, !model.config().tie_weights);
  StateDict theirs = to_their_names(kOp, table, merged_state_dict(model), model.config());
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
  if (gguf_) throw NotImplemented(kOp, "sash does not write GGUF files");
  check_shard_bytes(max_shard_bytes);
  const StateDict tensors = state_dict(model);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError(kOp, "cannot make folder '" + folder + "': " + error.message());
  ReplacementFile config(kOp, (fs::path(folder) / "config.json").string());
  config.write(config_text_.data(), config_text_.size());
  save_shards(folder, tensors, max_shard_bytes);
  config.commit();  // the last, so that a failure leaves the old one beside the old weights
}

}  // namespace sash::nn
