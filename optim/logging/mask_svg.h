#pragma once

#include <string>

#include "../../ops/attention/mask/attention_mask.h"

namespace sash::optim {

/// The picture of one head of a mask as an SVG figure with axes. The colour of a cell is the share
/// of its pairs that are visible. `ValueError` for lengths outside [1, 4096].
SASH_API std::string mask_svg(const AttentionMask& mask, int64_t queries, int64_t keys);
/// Writes `mask_svg` to a file. `IoError` if the file cannot be written.
SASH_API void save_mask_svg(const std::string& path, const AttentionMask& mask, int64_t queries,
                            int64_t keys);

}  // namespace sash::optim

namespace sash {
using optim::mask_svg;  // the former names, deprecated
using optim::save_mask_svg;
}  // namespace sash
