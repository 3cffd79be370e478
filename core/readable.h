#pragma once

#include <charconv>
#include <cstdint>
#include <string>

#include "export.h"

/// Numbers for people, as tables print them.
namespace sash {

/// As `printf` with "%.<digits>f", "%.<digits>e" or "%.<digits>g" in the C locale, whatever the
/// locale is; "nan" for a NaN of either sign.
SASH_API std::string to_text(double value, std::chars_format format, int digits);
/// "1,234,567".
SASH_API std::string grouped(int64_t value);
/// Three digits and a power of a thousand: "950", "1.23 M", "45.6 G".
SASH_API std::string with_prefix(double value);
/// "950 B", "1.5 KiB", "2.25 GiB".
SASH_API std::string bytes_text(int64_t bytes);

}  // namespace sash
