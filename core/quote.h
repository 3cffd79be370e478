#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "export.h"

namespace sash {

/// Bytes of the UTF-8 character at the start of a text that is not empty; 0 if its bytes are none.
SASH_API size_t utf8_size(std::string_view text);

/// The number of characters of a UTF-8 text.
SASH_API size_t utf8_length(std::string_view text);

/// Untrusted text for error messages: at most `most` bytes (whole UTF-8 characters) and then
/// "..."; control characters, and bytes that are no UTF-8, become '?'.
SASH_API std::string excerpt(std::string_view text, size_t most = 60);

/// The same in single quotes.
SASH_API std::string in_quotes(std::string_view text);

}  // namespace sash
