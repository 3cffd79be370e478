// GGUF files: metadata, tensors, tokenizers and configurations. The last byte says whether the
// others are a file, or choices of which a mostly valid one is made.
#include <sash/nn/pretrained/config_json.h>
#include <sash/nn/text/tokenizer.h>
#include <sash/tensor/io/gguf.h>
#include <sash/tensor/io/gguf_value.h>

#include "support/fuzz.h"

namespace sash::fuzz {

const std::vector<std::string> words{"general.architecture",
                                     "general.alignment",
                                     "tokenizer.ggml.model",
                                     "tokenizer.ggml.tokens",
                                     "tokenizer.ggml.scores",
                                     "tokenizer.ggml.merges",
                                     "tokenizer.ggml.token_type",
                                     "tokenizer.ggml.pre",
                                     "tokenizer.ggml.bos_token_id",
                                     "tokenizer.ggml.add_bos_token",
                                     "llama",
                                     "gpt2",
                                     "gemma3",
                                     "llama-bpe",
                                     "token_embd.weight",
                                     "llama.block_count",
                                     "a",
                                     "b",
                                     "ab",
                                     "a b",
                                     "<0x41>",
                                     "<0x-1>",
                                     "<0x",
                                     "\xe2\x96\x81"};

namespace {

std::string text_of(const std::string& text) { return raw(uint64_t{text.size()}) + text; }

uint64_t count_of(Bytes& bytes, uint64_t value) {
  return rarely(bytes, 32) ? bytes.ConsumeIntegral<uint64_t>() : value;
}

std::string value_of(Bytes& bytes, uint32_t type, int depth) {
  static constexpr size_t widths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  if (type == 8) return text_of(word(bytes));
  if (type == 9) {
    const uint32_t inner = bytes.ConsumeIntegralInRange<uint32_t>(0, depth > 2 ? 8 : 12);
    const auto count = bytes.ConsumeIntegralInRange<uint64_t>(0, 6);
    std::string text = raw(inner) + raw(count_of(bytes, count));
    for (uint64_t i = 0; i < count; ++i) text += value_of(bytes, inner, depth + 1);
    return text;
  }
  std::string number = bytes.ConsumeBytesAsString(type < 13 ? widths[type] : 4);
  number.resize(type < 13 ? widths[type] : 4);
  if (type == 7 && !rarely(bytes, 16)) number[0] = static_cast<char>(number[0] & 1);
  return number;
}

std::string strings(std::initializer_list<const char*> all) {
  std::string text = raw(uint32_t{9}) + raw(uint32_t{8}) + raw(uint64_t{all.size()});
  for (const char* one : all) text += text_of(one);
  return text;
}

std::string made(Bytes& bytes) {
  static constexpr uint64_t widths[] = {4, 2};  // F32, F16
  const auto keys = bytes.ConsumeIntegralInRange<uint64_t>(0, 8);
  const auto tensors = bytes.ConsumeIntegralInRange<uint64_t>(0, 4);
  const bool tokens = bytes.ConsumeBool();
  std::string text = "GGUF" + raw(uint32_t{3}) + raw(count_of(bytes, tensors)) +
                     raw(count_of(bytes, keys + (tokens ? 3 : 0)));
  uint64_t alignment = 32;
  for (uint64_t i = 0; i < keys; ++i) {
    text += text_of(rarely(bytes, 2) ? word(bytes) : "k" + std::to_string(i));
    const uint32_t type = bytes.ConsumeIntegralInRange<uint32_t>(0, rarely(bytes, 16) ? 20 : 12);
    text += raw(type) + value_of(bytes, type, 0);
  }
  if (tokens) {
    text += text_of("tokenizer.ggml.tokens") + strings({"a", "b", "ab", "<0x41>", "<0x-1>"});
    text += text_of("tokenizer.ggml.model") + raw(uint32_t{8}) + text_of("llama");
    text +=
        text_of("tokenizer.ggml.scores") + raw(uint32_t{9}) + raw(uint32_t{6}) + raw(uint64_t{5});
    for (int i = 0; i < 5; ++i) text += raw(bytes.ConsumeFloatingPoint<float>());
  }
  uint64_t offset = 0;
  for (uint64_t i = 0; i < tensors; ++i) {
    const auto rank = bytes.ConsumeIntegralInRange<uint32_t>(0, 4);
    text += text_of(rarely(bytes, 4) ? word(bytes) : "t" + std::to_string(i)) + raw(rank);
    const auto format = bytes.ConsumeIntegralInRange<uint32_t>(0, rarely(bytes, 8) ? 40 : 1);
    uint64_t size = format < 2 ? widths[format] : 1;
    for (uint32_t axis = 0; axis < rank; ++axis) {
      const uint64_t extent = count_of(bytes, bytes.ConsumeIntegralInRange<uint64_t>(0, 4));
      text += raw(extent);
      size *= extent;
    }
    text += raw(format) + raw(count_of(bytes, offset));
    offset = (offset + size + alignment - 1) / alignment * alignment;
  }
  text.resize((text.size() + alignment - 1) / alignment * alignment +
              std::min<uint64_t>(offset, 4096));
  return text;
}

template <class Function>
void expect_error_or_value(Function&& function) {
  try {
    function();
  } catch (const Error&) {
  }
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> files{"abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvw\1"};
  for (const char* name : {"blocks.gguf", "llama2.gguf", "smollm.gguf"}) {
    files.push_back(parity_file(name) + '\0');
  }
  return files;
}

void run(Bytes& bytes) {
  const bool builds = bytes.ConsumeBool();
  const std::string text = builds ? made(bytes) : bytes.ConsumeRemainingBytesAsString();
  const GgufFile file(path_of(text));
  for (const GgufFile::Entry& entry : file.entries()) {
    expect_error_or_value([&] { file.tensor(entry.name, {.device = kCPU}); });
  }
  for (const auto& [key, value] : file.metadata()) {
    expect_error_or_value([&, &name = key] { file.list<std::string>(name); });
    expect_error_or_value([&, &name = key] { file.get<int64_t>(name); });
  }
  expect_error_or_value([&] { nn::read_config_gguf("fuzz", file); });
  const text::Tokenizer tokenizer = text::Tokenizer::from_gguf(file);
  const std::vector<int64_t> ids = tokenizer.encode("ab aab \xe2\x82\xac<0x41>");
  for (const int64_t id : ids) require(id >= 0 && id < tokenizer.size(), "tokens are in range");
  tokenizer.decode(ids);
}

}  // namespace sash::fuzz
