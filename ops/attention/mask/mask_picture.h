#pragma once

#include <string>

#include "attention_mask.h"

namespace sash {

/// One head of a mask as text, of at most `width` x `width` characters. A character shows how many
/// pairs of its cell are visible: none ' ', then '.', ':' and '+', all '#'. `ValueError` for
/// lengths outside [1, 4096].
SASH_API std::string mask_picture(const AttentionMask& mask, int64_t queries, int64_t keys,
                                  int64_t width = 64);

/// The visible share of each cell of that picture: float64 [rows, columns] on the CPU. The longer
/// side has at most `width` cells.
SASH_API Tensor mask_shares(const AttentionMask& mask, int64_t queries, int64_t keys,
                            int64_t width = 64);

}  // namespace sash
