#pragma once

#include <string>

#include "../models/transformer_config.h"

namespace sash {
class GgufFile;
}

namespace sash::nn {

/// A file with more layers is refused.
constexpr int64_t kMaxLayers = 65'536;

/// The configuration of a model, read from a file.
struct PretrainedConfig {
  std::string family;
  TransformerConfig model{};
  std::vector<int64_t> stop_tokens{};  ///< tokens that end a text
};

/// Reads a config.json. Throws `FormatError` for invalid files and `NotImplemented` for unsupported
/// families and options. The errors name `op`.
SASH_API PretrainedConfig read_config_json(const char* op, const std::string& text);
/// Reads `eos_token_id` of a config.json or generation_config.json: a number, a list, or nothing.
/// Throws `FormatError`, which names `op`.
std::vector<int64_t> read_stop_tokens(const char* op, const std::string& text);
/// Reads the metadata of a GGUF file. Throws as `read_config_json` does.
PretrainedConfig read_config_gguf(const char* op, const GgufFile& file);

/// The shortest list of layers whose repetition gives `windowed.size()` layers: `window` where
/// `windowed` is true, else `full`.
std::vector<LayerAttention> shortest_period(const std::vector<bool>& windowed,
                                            const LayerAttention& window,
                                            const LayerAttention& full);

}  // namespace sash::nn
