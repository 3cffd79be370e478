#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "../../tensor/io/gguf.h"
#include "../models/decoder.h"
#include "../text/tokenizer.h"

namespace sash::nn {

/// A checkpoint of another library: a folder with `config.json` and safetensors as transformers
/// (Hugging Face) writes it, or a GGUF file.
///
///     const auto file = nn::Pretrained::open("SmolLM2-135M-Instruct.gguf");
///     nn::TransformerConfig config = file.config();  // to change: masks, `packed`, dropout
///     nn::Decoder model = file.decoder(config);
///
/// Folders: model_type gpt2, gpt_neo, llama, mistral, qwen2 (and 2.5), qwen3, phi3, gemma2,
/// gemma3_text, olmo3, gpt_oss (of one expert), modernbert, bert and roberta. GGUF: architecture
/// gpt2, llama, qwen2, qwen3, gemma2 and gemma3.
class SASH_API Pretrained {
 public:
  /// Reads the configuration of a folder or of a GGUF file. `path` may also name a file in the
  /// folder. Throws `IoError`; `FormatError` for invalid files; `NotImplemented` for an unsupported
  /// family or option.
  ///
  /// If config.json ties the head to the token embedding, but the files have two different tensors,
  /// which merged adapters can cause, `config().tie_weights` is false. Both tensors are loaded
  /// then, and `warning` says so.
  static Pretrained open(const std::string& path);

  /// The family as config.json or the GGUF file names it: "llama".
  const std::string& family() const { return family_; }
  const TransformerConfig& config() const { return config_; }
  /// The warning of `open`, which it also wrote to stderr; empty if there was none.
  const std::string& warning() const { return warning_; }
  /// The dtype of most floating elements in the files; float32 if any tensor is quantised. Throws
  /// as `load` does.
  DType dtype() const;
  /// Whether the model is an `Encoder`; else it is a `Decoder`.
  bool is_encoder() const {
    return family_ == "bert" || family_ == "modernbert" || family_ == "roberta";
  }
  /// Tokens that end a text, as `generation_config.json` names them, or else the configuration.
  const std::vector<int64_t>& stop_tokens() const { return stop_tokens_; }
  /// The tokenizer of the GGUF file, or of the folder's `tokenizer.json`. Throws as
  /// `text::Tokenizer` does.
  text::Tokenizer tokenizer() const;
  /// The GGUF file; null for a folder.
  const GgufFile* gguf() const { return gguf_.get(); }

  /// A model of this configuration with the weights of the file. No random weights are drawn. Its
  /// dtype is `options.dtype`, by default `dtype()`; its device is `options.device`, by default
  /// `default_device()`. Weights are read one by one. Throws `ValueError` if the model is an
  /// encoder, `DTypeError` unless the dtype is floating, and as `load` does.
  Decoder decoder(const TransformerConfig& config, const TensorOptions& options = {}) const;
  Decoder decoder(const TensorOptions& options = {}) const { return decoder(config_, options); }
  /// As `decoder`, for the families that are encoders.
  Encoder encoder(const TransformerConfig& config, const TensorOptions& options = {}) const;
  Encoder encoder(const TensorOptions& options = {}) const { return encoder(config_, options); }
  /// Copies the weights into the model and casts them to its dtype. The model was made from this
  /// `config()`, or from one with the same parameters but another `packed`. If the file has only
  /// one tensor of a tied pair, it is used for both. Keys of parts that sash does not have
  /// (poolers, masks, a head that the configuration leaves out) are ignored. Tensors are read one
  /// by one: loading takes at most the memory of the three largest tensors in addition to the
  /// model.
  ///
  /// Throws `ValueError` and loads nothing
  /// - if the model's head is tied and the file's head differs from the embedding,
  /// - if keys are missing, unexpected or of another shape; the error lists their names in the
  /// file,
  /// - if the model has tensors that files of the family do not have; the error lists them.
  /// Adapters
  ///   of `add_lora` are no such tensors.
  void load(TransformerStack& model) const;
  /// The model's tensors with the names and layouts of the opened file. Adapters (`add_lora`) are
  /// merged. Throws `ValueError`, which lists them, if files of the family do not have some
  /// tensors.
  StateDict state_dict(const TransformerStack& model) const;
  /// Writes `config.json` and the model's weights with the names of the family. `config.json` is as
  /// it was, except that `tie_word_embeddings` is the model's. Files of the opened folder that
  /// belong to the tokenizer, and `generation_config.json`, are copied, so that transformers and
  /// `open` read all of the new folder. Up to `max_shard_bytes`, the weights go to
  /// `model.safetensors`; larger models go to several files and `model.safetensors.index.json`. A
  /// router of gpt-oss, and the two positions of RoBERTa's padding, are written as zeros. Throws
  /// `NotImplemented` for a GGUF file.
  void save(const TransformerStack& model, const std::string& folder,
            int64_t max_shard_bytes = 5'000'000'000) const;

 private:
  Pretrained() = default;

  // Unties the head if the file's head differs from its embedding.
  void check_tied();
  template <class Model>
  Model make(const TransformerConfig& config, const TensorOptions& options) const;

  std::string path_, family_, warning_;
  std::string config_text_;  // config.json
  TransformerConfig config_;
  std::vector<int64_t> stop_tokens_;
  std::shared_ptr<const GgufFile> gguf_;
};

/// Reads the tensors of `folder` from `model.safetensors`, or from the files that
/// `model.safetensors.index.json` names. Throws `IoError`; `FormatError` if a file lacks tensors
/// that the index names.
SASH_API StateDict load_shards(const std::string& folder);
/// Writes these files: one, or several of at most `max_shard_bytes` each. Only a file with a single
/// tensor may be larger. For several files, an old index is removed first and the new one is
/// written last, so that old and new files are never read together.
SASH_API void save_shards(const std::string& folder, const StateDict& tensors,
                          int64_t max_shard_bytes);

}  // namespace sash::nn
