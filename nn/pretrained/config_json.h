#pragma once

#include <string>

#include "../models/transformer_config.h"

namespace sash {
class GgufFile;
}

namespace sash::nn {

/// The most layers that a file may name.
constexpr int64_t kMaxLayers = 65'536;

/// What a file says of a model.
struct PretrainedConfig {
  std::string family;
  TransformerConfig model{};
  std::vector<int64_t> stop_tokens{};  ///< that end a text
};

/// Reads a config.json. `FormatError` of `op` if it cannot be read, `NotImplemented` for what sash
/// does not have.
SASH_API PretrainedConfig read_config_json(const char* op, const std::string& text);
/// The same of a GGUF file's metadata.
PretrainedConfig read_config_gguf(const char* op, const GgufFile& file);

/// The shortest list that, repeated, begins with these layers.
std::vector<LayerAttention> shortest_period(const std::vector<bool>& windowed,
                                            const LayerAttention& window,
                                            const LayerAttention& full);

}  // namespace sash::nn
