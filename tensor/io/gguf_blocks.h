#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../core/dtype.h"

namespace sash {

/// How a GGUF file stores elements: plainly, or in blocks that share scales. `block` elements take
/// `bytes` bytes.
struct GgufFormat {
  uint32_t id;
  std::string_view name;
  int64_t block;
  int64_t bytes;
  /// Of the elements after reading; quantised ones become float32.
  DType dtype;
  /// Decodes a block; null where elements lie as they do in a tensor.
  void (*decode)(const uint8_t* block, float* values);
};

/// The format of that number, or null if sash does not read it.
SASH_API const GgufFormat* gguf_format(uint32_t id);
/// The name of any format, also of one that sash does not read: "IQ4_NL", "format 99".
SASH_API std::string gguf_format_name(uint32_t id);

}  // namespace sash
