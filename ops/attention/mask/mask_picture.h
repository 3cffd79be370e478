#pragma once

#include <string>

#include "attention_mask.h"

namespace sash {

/// One head of a mask as text: a character per cell of at most `width` x `width`, from ' ' (none
/// visible) over '.', ':' and '+' to '#' (all). `ValueError` for lengths outside [1, 4096].
SASH_API std::string mask_picture(const AttentionMask& mask, int64_t queries, int64_t keys,
                                  int64_t width = 64);

/// The picture as an SVG figure with axes: the colour of a cell is its visible share.
SASH_API std::string mask_svg(const AttentionMask& mask, int64_t queries, int64_t keys);
/// Writes `mask_svg` to a file. `IoError` if the file cannot be written.
SASH_API void save_mask_svg(const std::string& path, const AttentionMask& mask, int64_t queries,
                            int64_t keys);

}  // namespace sash
