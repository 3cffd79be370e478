#pragma once

#include <string>
#include <string_view>

#include "../../core/error.h"

namespace sash {

/// Guesses from `start`, the first 512 bytes of a file that is not safetensors, what the file is.
/// Returns the kind and advice, "a PyTorch zip archive; save it as safetensors"; empty if unknown.
SASH_API std::string foreign_kind(std::string_view start);

/// Appends the file to the text of an error of reading it, unless the text names it already.
SASH_API void name_file(Error& error, const std::string& path);

}  // namespace sash
