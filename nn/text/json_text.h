#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../core/export.h"

namespace sash::text {

/// Returns the bytes of a file. Throws `IoError`, which names `op`, if the path cannot be read or
/// is a folder.
SASH_API std::string read_text(std::string_view op, const std::string& path);

/// Returns `json`. Throws `FormatError`, which names `op`, if arrays and objects are nested more
/// than 64 deep, because values are copied by recursion, or for a byte of 0, behind which the
/// parser would read nothing.
SASH_API std::string_view checked_depth(std::string_view op, std::string_view json);

/// Reads `value`, a JSON text, as an integer. Throws `FormatError`, which names `op` and `name`,
/// unless it is an integer from `least` to `most`.
SASH_API int64_t integer_of(std::string_view op, const std::string& name, const std::string& value,
                            int64_t least, int64_t most);

}  // namespace sash::text
