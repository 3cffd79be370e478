#pragma once

#include <cstdint>
#include <string>

#include "export.h"

/// Numbers for people, as tables print them.
namespace sash {

/// "1,234,567".
SASH_API std::string grouped(int64_t value);
/// Three digits and a power of a thousand: "950", "1.23 M", "45.6 G".
SASH_API std::string with_prefix(double value);
/// "950 B", "1.5 KiB", "2.25 GiB".
SASH_API std::string bytes_text(int64_t bytes);

}  // namespace sash
