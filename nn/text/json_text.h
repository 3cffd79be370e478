#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../core/export.h"

namespace sash::text {

/// The bytes of a file. `IoError` of `op` if it cannot be read, or is a folder.
SASH_API std::string read_text(std::string_view op, const std::string& path);

/// `json` itself. `FormatError` of `op` if it nests arrays and objects more than 64 deep: values
/// are copied by recursion.
SASH_API std::string_view checked_depth(std::string_view op, std::string_view json);

/// The integer that `value` is as JSON. `FormatError` of `op`, naming it, unless it is one from
/// `least` to `most`.
SASH_API int64_t integer_of(std::string_view op, const std::string& name, const std::string& value,
                            int64_t least, int64_t most);

}  // namespace sash::text
