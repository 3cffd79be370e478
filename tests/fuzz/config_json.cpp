// A config.json of a pretrained model.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <sash/nn/pretrained/config_json.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"\"model_type\":",
                                     "\"llama\"",
                                     "\"gemma3_text\"",
                                     "\"gpt_oss\"",
                                     "\"modernbert\"",
                                     "\"phi3\"",
                                     "\"layer_types\":[\"full_attention\"]",
                                     "\"sliding_window\":",
                                     "\"num_hidden_layers\":",
                                     "\"hidden_size\":",
                                     "\"head_dim\":",
                                     "\"rope_scaling\":{\"rope_type\":\"yarn\"}",
                                     "\"rope_parameters\":",
                                     "\"rope_type\":\"longrope\"",
                                     "\"partial_rotary_factor\":0.5",
                                     "\"eos_token_id\":",
                                     "65536",
                                     "65537",
                                     "2147483647",
                                     "0",
                                     "-1",
                                     "1e400",
                                     "1.5",
                                     "null",
                                     "[",
                                     "]",
                                     "{",
                                     "}",
                                     ",",
                                     ":",
                                     "\"original_max_position_embeddings\":0",
                                     "\"factor\":0",
                                     "true"};

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(SASH_TEST_PARITY "/checkpoints")) {
    std::ifstream file(entry.path() / "config.json", std::ios::binary);
    if (file)
      all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return all;
}

void run(Bytes& bytes) {
  const std::string text = bytes.ConsumeRemainingBytesAsString();
  try {
    nn::read_stop_tokens("fuzz", text);
  } catch (const Error&) {
  }
  const nn::PretrainedConfig config = nn::read_config_json("fuzz", text);
  require(config.model.layers > 0 && config.model.layers <= nn::kMaxLayers, "layers in range");
}

}  // namespace sash::fuzz
