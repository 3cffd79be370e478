#pragma once

#include <string>
#include <string_view>

#include "../../core/error.h"

namespace sash {

/// What a file is that begins with `start` (its first 512 bytes are enough), and what to do about
/// it: "a PyTorch zip archive; save it as safetensors". Empty for an unknown kind. First bytes
/// prove little: ask only about a file that cannot be safetensors.
SASH_API std::string foreign_kind(std::string_view start);

/// Appends the file to the text of an error of reading it, unless the text names it already.
SASH_API void name_file(Error& error, const std::string& path);

}  // namespace sash
