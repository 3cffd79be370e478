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
/// Folders: model_type gpt2, gpt_neo, llama, mistral, qwen3, phi3, gemma2, gemma3_text, olmo3,
/// gpt_oss (of one expert), modernbert and bert. GGUF: architecture gpt2, llama, qwen3, gemma2 and
/// gemma3.
class SASH_API Pretrained {
 public:
  /// Reads the configuration of a folder, or of a file in it, or a GGUF file's. `IoError`;
  /// `FormatError` for what cannot be read; `NotImplemented` for a family, or an option of one,
  /// that sash does not have.
  ///
  /// Where config.json ties the head to the token embedding, but the files have both and they
  /// differ, as merged adapters may, `config().tie_weights` is false: both are loaded, and
  /// `warning` says so.
  static Pretrained open(const std::string& path);

  /// "llama", as config.json or the GGUF file has it.
  const std::string& family() const { return family_; }
  const TransformerConfig& config() const { return config_; }
  /// What `open` also wrote to stderr; empty if it had nothing to say.
  const std::string& warning() const { return warning_; }
  /// The dtype that most floating elements of the files have; float32 if any are quantised. Errors
  /// as `load`.
  DType dtype() const;
  /// Whether the model is an `Encoder`; else it is a `Decoder`.
  bool is_encoder() const { return family_ == "bert" || family_ == "modernbert"; }
  /// Tokens that end a text, as the configuration names them.
  const std::vector<int64_t>& stop_tokens() const { return stop_tokens_; }
  /// From the GGUF file, or the folder's `tokenizer.json`. Errors as `text::Tokenizer`.
  text::Tokenizer tokenizer() const;
  /// The GGUF file, or null of a folder.
  const GgufFile* gguf() const { return gguf_.get(); }

  /// A model of this configuration with the file's weights, whose random ones were never drawn, in
  /// `options.dtype`, by default `dtype()`, and on `options.device`, by default `default_device()`.
  /// Weights are read one by one. `ValueError` if the model is an encoder, `DTypeError` unless the
  /// dtype is floating; else as `load`.
  Decoder decoder(const TransformerConfig& config, const TensorOptions& options = {}) const;
  Decoder decoder(const TensorOptions& options = {}) const { return decoder(config_, options); }
  /// The same of an encoder.
  Encoder encoder(const TransformerConfig& config, const TensorOptions& options = {}) const;
  Encoder encoder(const TensorOptions& options = {}) const { return encoder(config_, options); }
  /// Copies the weights into the model, made from this `config()` or one with the same parameters
  /// in other packing, and casts them to its dtype. If the file has one tensor of a tied pair, the
  /// model takes both from it.
  /// `ValueError` if the model's head is tied and the file's head differs from the embedding; if
  /// keys are missing, unexpected or of another shape, with a list of their names in the file; or
  /// if the model has tensors, adapters of `add_lora` aside, that files of the family do not have,
  /// with a list of these tensors. Nothing is loaded then. Keys of parts that sash does not have
  /// (poolers, masks, a head that the configuration leaves out) are ignored. Tensors are read one
  /// by one: beside the model, loading takes the memory of the three largest tensors at most.
  void load(TransformerStack& model) const;
  /// The model's tensors by the names, and in the layouts, of the file that was opened; adapters
  /// (`add_lora`) are merged. `ValueError` listing tensors that files of the family do not have.
  StateDict state_dict(const TransformerStack& model) const;
  /// Writes `config.json` as it was, but with the model's `tie_word_embeddings` if that was
  /// another, and the model's weights under the names of its family: to `model.safetensors` or,
  /// above `max_shard_bytes`, to several files and `model.safetensors.index.json`. `NotImplemented`
  /// of a GGUF file. A router of gpt-oss is written as zeros.
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

/// The tensors of `folder`: of `model.safetensors`, or of the files that
/// `model.safetensors.index.json` names. `IoError`; `FormatError` if a file lacks what the index
/// says.
SASH_API StateDict load_shards(const std::string& folder);
/// Writes these files: one, or as many as it takes with at most `max_shard_bytes` each, but for
/// larger tensors. Of several, an old index is removed first and the new one written last, so that
/// files of which some are old are never read together.
SASH_API void save_shards(const std::string& folder, const StateDict& tensors,
                          int64_t max_shard_bytes);

}  // namespace sash::nn
